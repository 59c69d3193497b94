"""How text is split before merging, and which family's pre-tokenizer a file gets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from kinfolk.errors import PluginError, UnsupportedModelError
from kinfolk.text.pretokenizers import GENERIC, find_pretokenizer, split_steps
from kinfolk_qwen35.text import PRETOKENIZERS

QWEN35, QWEN2 = PRETOKENIZERS
AWKWARD = st.sampled_from(
    list("aZé1٣ⅷ \n\r\t'.,!()_-sStTlLſ\u0301\u0930\u093f\u00a0\u3000\U0001f642\u200d汉")
)
TEXT = st.text(AWKWARD | st.characters(codec="utf-8"), max_size=30)


def pieces(pre, text: str) -> list[str]:
    steps = pre_tokenizers.Sequence(split_steps(pre))
    return [piece for piece, _ in steps.pre_tokenize_str(text)]


# -- where text is cut ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("foo!!\n\nbar", ["foo", "!!\n\n", "bar"]),
        ("x;\r\n", ["x", ";\r\n"]),
        ("e\u0301te\u0301 x", ["e\u0301te\u0301", " x"]),
        ("12 3", ["1", "2", " ", "3"]),
        ("a  b\n\n\n  x", ["a", " ", " b", "\n\n\n", " ", " x"]),
        ("I'LL go", ["I", "'LL", " go"]),
        ("'ſa", ["'ſa"]),
        ("हिन्दी में", ["हिन्दी", " में"]),
        ("a \u0301b", ["a", " \u0301b"]),
        ("(a)_b", ["(a", ")_", "b"]),
        ("  \n  ", ["  \n", "  "]),
        ("\t\tx", ["\t", "\tx"]),
        ("你好，世界", ["你好", "，世界"]),
        ("a\x00b", ["a", "\x00b"]),
    ],
)
def test_qwen35_cuts(text: str, expected: list[str]) -> None:
    assert pieces(QWEN35, text) == expected


def test_qwen2_keeps_marks_out_of_words() -> None:
    assert pieces(QWEN2, "e\u0301te\u0301 x") == ["e", "\u0301te", "\u0301", " x"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "I'll pay 1234 €\n\n ok", ["I", "'ll", " pay", " 1234", " €", "\n\n", " ok"]),
        ("gpt-2", "I'LL", ["I", "'", "LL"]),
        ("llama-bpe", "I'LL 1234567 !!\nx", ["I", "'LL", " ", "123", "456", "7", " !!\n", "x"]),
        ("llama3", "a\u0301b", ["a", "\u0301b"]),
        ("starcoder", "a 123 b", ["a", " ", "1", "2", "3", " b"]),
        ("smollm", "x=42", ["x", "=", "4", "2"]),
        ("default", "a<=b, 1234 c", ["a", "<=", "b", ",", " ", "123", "4", " c"]),
    ],
)
def test_generic_cuts(name: str, text: str, expected: list[str]) -> None:
    assert pieces(GENERIC[name], text) == expected


@given(st.text(AWKWARD, max_size=30))
def test_gpt2_cuts_as_the_byte_level_step_of_the_library(text: str) -> None:
    # That step writes bytes as letters; the places of the cuts are what is compared.
    truth = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    places = [place for _, place in truth.pre_tokenize_str(text)]
    steps = pre_tokenizers.Sequence(split_steps(GENERIC["gpt-2"]))
    assert [place for _, place in steps.pre_tokenize_str(text)] == places


@pytest.mark.parametrize("pre", [*PRETOKENIZERS, *GENERIC.values()], ids=lambda pre: pre.name)
@given(text=TEXT)
def test_no_text_is_lost(pre, text: str) -> None:
    assert "".join(pieces(pre, text)) == text


@given(st.text(AWKWARD, max_size=30))
def test_qwen35_cuts_as_another_regex_engine_does(text: str) -> None:
    published = (
        r"(?:'s|'t|'re|'ve|'m|'ll|'d|'S|'T|'RE|'VE|'M|'LL|'D|'Re|'rE|'Ve|'vE|'Ll|'lL)"
        r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    assert pieces(QWEN35, text) == regex.findall(published, text)


# -- the family of a pre-tokenizer ----------------------------------------------------------------


def test_a_family_brings_its_own(stub_family) -> None:
    assert find_pretokenizer("qwen35", [stub_family("a", (QWEN35,))]) is QWEN35


def test_generic_ids_need_no_family() -> None:
    assert find_pretokenizer("gpt-2", []) is GENERIC["gpt-2"]


def test_a_family_may_redefine_a_generic_id(stub_family, make_pre) -> None:
    mine = make_pre("gpt-2", r"\d+")
    assert find_pretokenizer("gpt-2", [stub_family("a", (mine,))]) is mine


def test_an_unclaimed_id_names_itself_the_file_and_who_claims_what(stub_family, make_pre) -> None:
    families = [stub_family("b", (make_pre("two"), make_pre("one"))), stub_family("a", ())]
    with pytest.raises(UnsupportedModelError) as caught:
        find_pretokenizer("odd", families, path="some/model.gguf")
    message = str(caught.value)
    assert "some/model.gguf" in message
    assert "'odd'" in message
    assert "b: one, two" in message
    assert "gpt-2" in message
    assert "a:" not in message


def test_a_vocabulary_that_nobody_reads_is_named_by_its_own_key(stub_family, make_pre) -> None:
    """A claim for byte-level vocabularies does not cover another kind with the same name."""
    families = [stub_family("a", (make_pre("t5"),))]
    with pytest.raises(UnsupportedModelError) as caught:
        find_pretokenizer("t5", families, path="some/model.gguf", byte_level=False)
    assert "some/model.gguf: key 'tokenizer.ggml.model' is 't5'" in str(caught.value)
    assert "tokenizer.ggml.pre" not in str(caught.value)
    characters = replace(make_pre("t5"), symbols="characters")
    both = [*families, stub_family("b", (characters,))]
    assert find_pretokenizer("t5", both, byte_level=False) == characters
    assert find_pretokenizer("t5", both) == make_pre("t5")


def test_families_may_agree(stub_family, make_pre) -> None:
    families = [stub_family("a", (make_pre("x"),)), stub_family("b", (make_pre("x"),))]
    assert find_pretokenizer("x", families) == make_pre("x")


def test_families_that_disagree_are_named(stub_family, make_pre) -> None:
    families = [stub_family("b", (make_pre("x", "1"),)), stub_family("a", (make_pre("x", "2"),))]
    with pytest.raises(PluginError, match=r"'x'.*a, b"):
        find_pretokenizer("x", families)


def test_the_models_own_family_decides(stub_family, make_pre) -> None:
    families = [stub_family("b", (make_pre("x", "1"),)), stub_family("a", (make_pre("x", "2"),))]
    assert find_pretokenizer("x", families, own="b") == make_pre("x", "1")


class Failing:
    name = "broken"

    def pretokenizers(self):
        raise PluginError("family 'broken': Family.pretokenizers failed")


def test_the_models_own_family_is_asked_alone(stub_family, make_pre, caplog) -> None:
    families = [Failing(), stub_family("a", (make_pre("x"),))]
    assert find_pretokenizer("x", families, own="a") == make_pre("x")
    assert not caplog.records


def test_another_family_that_fails_is_left_out(stub_family, make_pre, caplog) -> None:
    families = [Failing(), stub_family("a", ()), stub_family("b", (make_pre("x"),))]
    assert find_pretokenizer("x", families, own="a") == make_pre("x")
    assert find_pretokenizer("gpt-2", families, own="a") is GENERIC["gpt-2"]
    said = "family 'broken': Family.pretokenizers failed; it is left out"
    assert [record.message for record in caplog.records] == [said, said]
    with pytest.raises(UnsupportedModelError, match=r"known: b: x; built in"):
        find_pretokenizer("odd", families, own="a")


def test_a_failure_of_the_models_own_family_is_not_covered_up() -> None:
    """The family might have claimed a name of ours with another meaning."""
    with pytest.raises(PluginError, match=r"Family\.pretokenizers failed"):
        find_pretokenizer("gpt-2", [Failing()], own="broken")


def test_a_pattern_that_is_no_regular_expression_is_named(make_pre) -> None:
    with pytest.raises(PluginError, match=r"pre-tokenizer 'x': '\(' is not a regular expression"):
        split_steps(make_pre("x", "("))
