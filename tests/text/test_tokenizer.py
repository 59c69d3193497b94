"""Byte-level tokenizers: equal to plain implementations of the algorithm, and reversible."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import RequestError
from kinfolk.text.byte_level import LETTER_OF_BYTE
from kinfolk.text.formats import PreTokenizer
from kinfolk.text.tokenizer import Tokenizer

CONTROL, USER_DEFINED = 3, 4
PUBLISHED_PATTERN = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

OLD_CHARACTERS = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if unicodedata.ucd_3_2_0.category(character) not in ("Cn", "Cs", "Co")
]
"""Regex engines know different versions of Unicode, and agree on what is old."""


@pytest.fixture(scope="module")
def plain(case_metadata, plain_bpe):
    return plain_bpe(case_metadata, PUBLISHED_PATTERN)


@pytest.fixture(scope="module")
def transformers_tokenizer(cases):
    """The tokenizer that transformers builds from the same file."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(cases, gguf_file="qwen35.gguf")


# -- ids ------------------------------------------------------------------------------------------


def test_there_are_enough_adversarial_strings(adversarial) -> None:
    assert len(adversarial) >= 40


def test_the_letters_of_bytes_are_those_of_the_definition(make_metadata) -> None:
    letters = make_metadata().strings("tokenizer.ggml.tokens")
    assert [LETTER_OF_BYTE[byte] for byte in range(256)] == list(letters)


def test_adversarial_strings_equal_the_plain_algorithm(case_tokenizer, plain, adversarial) -> None:
    for name, text in adversarial.items():
        assert case_tokenizer.encode(text) == plain.encode(text), name


@given(text=st.text(st.sampled_from(OLD_CHARACTERS), max_size=40))
def test_any_string_equals_the_plain_algorithm(case_tokenizer, plain, text: str) -> None:
    assert case_tokenizer.encode(text) == plain.encode(text)


def test_adversarial_strings_equal_transformers(
    case_tokenizer, transformers_tokenizer, adversarial
) -> None:
    for name, text in adversarial.items():
        if "ſ" in text:
            # transformers' case-insensitive flag matches the long s as an s; llama.cpp does not.
            continue
        theirs = transformers_tokenizer.encode(text, add_special_tokens=False)
        assert case_tokenizer.encode(text) == theirs, name


def test_text_is_not_normalised(case_tokenizer) -> None:
    assert case_tokenizer.encode("\u00e9") != case_tokenizer.encode("e\u0301")
    assert case_tokenizer.decode(case_tokenizer.encode("e\u0301 \u212b")) == "e\u0301 \u212b"


def test_merges_are_ranked_and_stay_inside_pieces(make_tokenizer) -> None:
    tokenizer = make_tokenizer(["b c", "a b", "a bc", "Ġ a"])
    assert [tokenizer.token_text(t) for t in tokenizer.encode("abc aab ab c")] == [
        "abc",
        "Ġa",
        "ab",
        "Ġ",
        "ab",
        "Ġ",
        "c",
    ]


def test_pieces_that_are_tokens_are_taken_whole_only_if_the_pre_tokenizer_says_so(
    make_metadata, stub_family
) -> None:
    # "abc" cannot be reached: "a b" comes before "b c".
    meta = make_metadata(["a b", "b c", "a bc"], pre="x")
    merged = stub_family("f", (PreTokenizer("x", (r"\p{L}+",)),))
    whole = stub_family("f", (PreTokenizer("x", (r"\p{L}+",), ignore_merges=True),))
    assert len(Tokenizer.from_metadata(meta, [merged]).encode("abc")) == 2
    assert len(Tokenizer.from_metadata(meta, [whole]).encode("abc")) == 1


def test_a_long_word_and_a_long_run_of_spaces_are_encoded(case_tokenizer) -> None:
    for text in ("a" * 200_000, " " * 200_000 + "x", "\n " * 100_000, "<" * 200_000):
        assert case_tokenizer.decode(case_tokenizer.encode(text)) == text


# -- special tokens -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_specials(make_tokenizer):
    return make_tokenizer(
        ["h i"],
        [("<ctl>", CONTROL), ("<usr>", USER_DEFINED), ("<unk>", 2)],
        bos_token_id=256,
        add_bos_token=True,
    )


def test_specials_are_taken_whole(with_specials) -> None:
    text = "hi<ctl><usr>hi<unk>"
    assert with_specials.encode(text, add_bos=False)[1:] == [257, 258, *[256], 259]


def test_without_parsing_control_tokens_are_spelled_out(with_specials) -> None:
    ids = with_specials.encode("<ctl><usr>", add_bos=False, parse_special=False)
    assert ids == [*b"<ctl>", 258]
    assert with_specials.decode(ids) == "<ctl><usr>"


def test_what_is_control_hidden_and_special(with_specials) -> None:
    kinds = {
        with_specials.token_text(token): (
            with_specials.is_control(token),
            with_specials.is_hidden(token),
            with_specials.is_special(token),
        )
        for token in (65, 257, 258, 259)
    }
    assert kinds == {
        "A": (False, False, False),
        "<ctl>": (True, True, True),
        "<usr>": (False, False, True),
        "<unk>": (True, True, True),
    }


def test_decoding_can_leave_control_tokens_out(with_specials) -> None:
    ids = with_specials.encode("a<ctl>b<usr>c", add_bos=False)
    assert with_specials.decode(ids) == "a<ctl>b<usr>c"
    assert with_specials.decode(ids, skip_control=True) == "ab<usr>c"


# -- the beginning of a text ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "given_", "expected"),
    [
        ({"bos_token_id": 7, "add_bos_token": True}, None, True),
        ({"bos_token_id": 7, "add_bos_token": True}, False, False),
        ({"bos_token_id": 7, "add_bos_token": False}, None, False),
        ({"bos_token_id": 7, "add_bos_token": False}, True, True),
        ({"bos_token_id": 7}, None, False),
        ({"bos_token_id": 7, "pre": "llama-bpe"}, None, True),
        ({"bos_token_id": 7, "pre": "llama-bpe", "add_bos_token": False}, None, False),
        ({"add_bos_token": True}, None, False),
    ],
)
def test_bos_is_added_as_asked_else_as_the_file_says(
    make_tokenizer, keys, given_, expected
) -> None:
    ids = make_tokenizer(**keys).encode("a", add_bos=given_)
    assert ids == ([7] if expected else []) + [97]


def test_asking_for_a_bos_that_does_not_exist_is_an_error(make_tokenizer) -> None:
    with pytest.raises(RequestError, match="BOS"):
        make_tokenizer().encode("a", add_bos=True)


# -- back to text ---------------------------------------------------------------------------------


@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
def test_decoding_gives_the_text_back(case_tokenizer, text: str) -> None:
    assert case_tokenizer.decode(case_tokenizer.encode(text)) == text
    assert case_tokenizer.decode(case_tokenizer.encode(text, parse_special=False)) == text


@given(
    st.lists(
        st.sampled_from(
            ["<|im_end|>", "<think>", "</think>", "<|", "|>", "\n", " ", "a", "é", "1"]
        ),
        max_size=20,
    ).map("".join)
)
def test_decoding_gives_text_with_specials_back(case_tokenizer, text: str) -> None:
    assert case_tokenizer.decode(case_tokenizer.encode(text)) == text


def test_adversarial_strings_survive(case_tokenizer, adversarial) -> None:
    for name, text in adversarial.items():
        assert case_tokenizer.decode(case_tokenizer.encode(text)) == text, name


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude42", "🙂"),
        ("\ud83d\ud83d\ude42x\udfff", "\ufffd🙂x\ufffd"),
    ],
)
def test_lone_surrogates_are_replaced_and_pairs_joined(case_tokenizer, text, read_as) -> None:
    assert case_tokenizer.encode(text) == case_tokenizer.encode(read_as)
    assert case_tokenizer.decode(case_tokenizer.encode(text)) == read_as


def test_ids_outside_of_the_vocabulary_are_refused(case_tokenizer) -> None:
    for token in (-1, case_tokenizer.vocab_size):
        with pytest.raises(RequestError, match=str(token)):
            case_tokenizer.decode([token])
        with pytest.raises(RequestError):
            case_tokenizer.is_control(token)


def test_the_bytes_of_all_tokens_are_those_of_transformers(
    case_tokenizer, transformers_tokenizer
) -> None:
    for token in range(case_tokenizer.vocab_size):
        theirs = transformers_tokenizer.decode([token])
        assert case_tokenizer.token_bytes(token).decode("utf-8", "replace") == theirs


# -- the family and the process -------------------------------------------------------------------


def test_the_case_is_read_as_its_family_states(case_tokenizer) -> None:
    assert case_tokenizer.vocab_size == 768
    assert case_tokenizer.eog == {0, 2}
    assert (case_tokenizer.bos, case_tokenizer.eos) == (None, 2)
    assert not case_tokenizer.adds_bos
    # The markers of reasoning are control tokens in this file, and shown all the same.
    assert case_tokenizer.is_control(3)
    assert not case_tokenizer.is_hidden(3)


def test_importing_is_light() -> None:
    code = (
        "import json, sys, pkgutil, importlib, kinfolk.text\n"
        "for module in pkgutil.iter_modules(kinfolk.text.__path__):\n"
        "    importlib.import_module('kinfolk.text.' + module.name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "tokenizers", "triton"} & set(json.loads(done.stdout))
