"""The byte-level tokenizers of the families with experts, and their chat formats."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from kinfolk.gguf.file import GGUFFile
from kinfolk.text.chat import ChatTemplate
from kinfolk.text.pretokenizers import find_pretokenizer, split_steps
from kinfolk.text.tokenizer import Tokenizer
from kinfolk_laguna.family import Laguna
from kinfolk_qwen35.family import Qwen35
from kinfolk_qwen35moe.family import Qwen35Moe

FAMILIES = {"qwen35moe": Qwen35Moe(), "laguna": Laguna()}
CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PUBLISHED = {
    "qwen35moe": (
        rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}",
    ),
    "laguna": (
        r"[^\n]+|[\n]+",
        rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}",
    ),
}
OLD_CHARACTERS = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if unicodedata.ucd_3_2_0.category(character) not in ("Cn", "Cs", "Co")
]
AWKWARD = st.lists(
    st.sampled_from(list("aZé1٣ \n\n\r\t'.,!sStT\u0301\u00a0\u3000汉<>|/"))
    | st.sampled_from(["<think>", "</assistant>", "<|im_end|>"])
    | st.sampled_from(OLD_CHARACTERS),
    max_size=40,
).map("".join)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def meta(family, cases):
    return GGUFFile.open(cases / f"{family.name}.gguf").metadata


@pytest.fixture(scope="module")
def tokenizer(family, meta):
    return Tokenizer.from_metadata(meta, [family], own=family.name, chat=family.chat(meta))


@pytest.fixture(scope="module")
def plain(family, meta, plain_bpe):
    return plain_bpe(meta, *PUBLISHED[family.name])


def pieces(pre, text):
    steps = pre_tokenizers.Sequence(split_steps(pre))
    return [piece for piece, _ in steps.pre_tokenize_str(text)]


# -- ids ------------------------------------------------------------------------------------------


def test_adversarial_strings_equal_the_plain_algorithm(tokenizer, plain, adversarial):
    for name, text in adversarial.items():
        assert tokenizer.encode(text) == plain.encode(text), name
        assert tokenizer.decode(tokenizer.encode(text)) == text, name


@given(text=AWKWARD)
def test_any_string_equals_the_plain_algorithm(tokenizer, plain, text):
    assert tokenizer.encode(text) == plain.encode(text)


@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
def test_decoding_gives_the_text_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_pieces_of_their_own(tokenizer):
    assert len(tokenizer.encode("1234567890")) == 10


# -- where text is cut ----------------------------------------------------------------------------

(LAGUNA,) = Laguna().pretokenizers()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("foo!!\n\nbar", ["foo", "!!", "\n\n", "bar"]),
        ("x;\r\n", ["x", ";\r", "\n"]),
        ("e\u0301te\u0301 x", ["e", "\u0301te", "\u0301", " x"]),
        ("12 3", ["1", "2", " ", "3"]),
        ("a  b\n\n\n  x", ["a", " ", " b", "\n\n\n", " ", " x"]),
        ("I'LL go", ["I", "'LL", " go"]),
        ("  \n  ", ["  ", "\n", "  "]),
        ("\n\t\n", ["\n", "\t", "\n"]),
        ("", []),
    ],
)
def test_laguna_cuts(text, expected):
    assert pieces(LAGUNA, text) == expected


@given(text=AWKWARD)
def test_no_piece_of_laguna_holds_a_newline_beside_anything_else(text):
    split = pieces(LAGUNA, text)
    assert "".join(split) == text
    assert all(piece.strip("\n") in ("", piece) for piece in split)


def test_families_that_share_a_vocabulary_cut_alike():
    """Each works alone; together they must not contradict each other."""
    assert Qwen35Moe().pretokenizers() == Qwen35().pretokenizers()
    assert find_pretokenizer("qwen35", [Qwen35Moe(), Qwen35()]) == Qwen35().pretokenizers()[0]


# -- turns ----------------------------------------------------------------------------------------


def test_stops_are_found_by_their_text(make_metadata):
    specials = [("〈|EOS|〉", 3), ("<think>", 4), ("<assistant>", 3), ("</assistant>", 4)]
    meta = make_metadata([], specials, pre="laguna", eos_token_id=256)
    family = Laguna()
    tokenizer = Tokenizer.from_metadata(meta, [family], chat=family.chat(meta))
    assert tokenizer.eog == {256, 259}
    # Other tags are ordinary text.
    assert tokenizer.encode("<user>", add_bos=False) == list(b"<user>")


def test_a_turn_end_that_the_file_names_counts_whatever_its_text(make_metadata):
    specials = [("〈|EOS|〉", 3), ("<end>", 3)]
    meta = make_metadata([], specials, pre="laguna", eos_token_id=256, eot_token_id=257)
    tokenizer = Tokenizer.from_metadata(meta, [Laguna()], chat=Laguna().chat(meta))
    assert tokenizer.eog == {256, 257}


TAGGED = (
    "{{- bos_token -}}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'assistant' -%}"
    "{{ '<assistant>\\n' }}"
    "{%- if m.reasoning -%}{{ '<think>\\n' + m.reasoning + '\\n</think>\\n' }}"
    "{%- else -%}{{ '</think>\\n' }}{%- endif -%}"
    "{%- if m.content -%}{{ m.content + '\\n' }}{%- endif -%}"
    "{%- for call in m.tool_calls or [] -%}"
    "{{ '<tool_call>' + call.function.name + '\\n' }}"
    "{%- for key, value in call.function.arguments.items() -%}"
    "{{ '<arg_key>' + key + '</arg_key>\\n<arg_value>' }}"
    "{{- value if value is string else value | tojson -}}{{ '</arg_value>\\n' }}"
    "{%- endfor -%}{{ '</tool_call>\\n' }}"
    "{%- endfor -%}{{ '</assistant>\\n' }}"
    "{%- elif m.role == 'tool' -%}"
    "{{ '<tool_response>\\n' + m.content + '\\n</tool_response>\\n' }}"
    "{%- elif m.role == 'system' -%}{{ '<system>\\n\\n' + m.content + '\\n</system>\\n' }}"
    "{%- else -%}{{ '<user>\\n' + m.content + '\\n</user>\\n' }}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{ '<assistant>\\n' + ('<think>' if enable_thinking else '</think>') }}"
    "{%- endif -%}"
)
"""Of the form that the family's templates have."""


@pytest.fixture(scope="module")
def tags(make_metadata):
    """A tokenizer of the family whose template marks roles with tags."""
    specials = [
        (text, 3 if "assistant" in text or "EOS" in text else 4)
        for text in (
            "〈|EOS|〉", "<assistant>", "</assistant>", "<think>", "</think>", "<tool_call>",
            "</tool_call>",
        )
    ]  # fmt: skip
    meta = make_metadata([], specials, pre="laguna", eos_token_id=256, bos_token_id=256)
    return Tokenizer.from_metadata(meta, [Laguna()], chat=Laguna().chat(meta))


@pytest.fixture(scope="module")
def tagged(tags):
    return ChatTemplate(TAGGED, tags, Laguna().chat(None))


def test_a_conversation_in_tags(tagged):
    messages = [
        {"role": "developer", "content": "S"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo"},
        {"role": "user", "content": "Q"},
    ]
    assert tagged.render(messages, enable_thinking=True) == (
        "〈|EOS|〉<system>\n\nS\n</system>\n<user>\nHi\n</user>\n<assistant>\n</think>\nYo\n"
        "</assistant>\n<user>\nQ\n</user>\n<assistant>\n<think>"
    )


CALL = {"type": "function", "function": {"name": "get", "arguments": '{"city": "Rome", "n": 2}'}}


def test_calls_and_their_results_in_tags(tagged):
    """Arguments arrive as JSON text and reach the template as values."""
    messages = [
        {"role": "user", "content": "W?"},
        {"role": "assistant", "reasoning_content": "R", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "21C"},
    ]
    assert tagged.render(messages, enable_thinking=False) == (
        "〈|EOS|〉<user>\nW?\n</user>\n<assistant>\n<think>\nR\n</think>\n<tool_call>get\n"
        "<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>n</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>\n</assistant>\n<tool_response>\n21C\n"
        "</tool_response>\n<assistant>\n</think>"
    )


def test_the_next_turn_departs_behind_the_last_role_header(tagged, tags):
    """With reasoning on, since the probe's answer has none; with it off, nothing is rewritten."""
    messages = [{"role": "user", "content": "Q"}]
    for thinking, header in ((True, "<assistant>"), (False, "<assistant>\n</think>")):
        prompt = tagged.prompt(messages, enable_thinking=thinking)
        kept = tags.decode(prompt.tokens[: prompt.forks[-1]])
        assert kept.endswith(header)
    assert prompt.tokens[0] == 256
    assert prompt.tokens.count(256) == 1


@pytest.mark.parametrize("question", ["Hi", "y", "\nz", "</system>", "<assistant>"])
def test_chats_part_behind_a_system_prompt_that_no_special_token_ends(tagged, tags, question):
    """All tokens of the system prompt but a last one, which other questions might merge with."""
    system = "You are a helpful assistant who answers in one short sentence, or not at all."
    opening = {"role": "system", "content": system}
    prompt = tagged.prompt([opening, {"role": "user", "content": question}])
    shared, last = prompt.forks
    assert tags.decode(prompt.tokens[:shared]).endswith(f"{system}\n</system>\n<user>")
    assert shared < last
    for other in ("What?", "\n\n", "yes"):
        again = tagged.prompt([opening, {"role": "user", "content": other}])
        assert again.tokens[:shared] == prompt.tokens[:shared]
        assert again.forks[0] == shared
