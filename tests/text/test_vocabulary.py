"""Reading a token list, and the errors about a broken one."""

from __future__ import annotations

import logging

import pytest

from kinfolk.errors import ModelFormatError, UnsupportedModelError
from kinfolk.text.formats import ChatFormat, PreTokenizer
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.text.vocabulary import read_vocabulary

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5


# -- tokens that end a generation -----------------------------------------------------------------


def test_ids_of_the_file_end_a_generation(make_tokenizer) -> None:
    tokenizer = make_tokenizer(eos_token_id=5, eot_token_id=6, eom_token_id=7, bos_token_id=8)
    assert tokenizer.eog == {5, 6, 7}
    assert (tokenizer.bos, tokenizer.eos) == (8, 5)


def test_common_ends_count_where_they_are_control_tokens(make_tokenizer) -> None:
    specials = [("<|im_end|>", CONTROL), ("</s>", NORMAL), ("<eos>", USER_DEFINED), ("x", CONTROL)]
    assert make_tokenizer([], specials).eog == {256}


def test_html_is_no_end_of_text(make_tokenizer) -> None:
    """Gemma lists the tags of HTML as user-defined tokens, and ``</s>`` is one of them."""
    specials = [("<s>", USER_DEFINED), ("</s>", USER_DEFINED), ("<eos>", CONTROL)]
    tokenizer = make_tokenizer([], specials, eos_token_id=258)
    assert tokenizer.eog == {258}
    ids = tokenizer.encode("<s>old</s> new")
    assert tokenizer.decode(ids, skip_control=True) == "<s>old</s> new"


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
def test_an_end_that_the_file_names_counts_whatever_its_type(make_tokenizer, kind) -> None:
    tokenizer = make_tokenizer([], [("</s>", kind), ("<eot>", kind)], eos_token_id=256)
    assert tokenizer.eog == {256}
    assert make_tokenizer([], [("<eot>", kind)], eot_token_id=256).eog == {256}


def test_a_familys_stop_tokens_count_whatever_their_type(make_tokenizer) -> None:
    tokenizer = make_tokenizer(
        [], [("<stop>", NORMAL)], chat=ChatFormat(stop_tokens=("<stop>", "<absent>"))
    )
    assert tokenizer.eog == {256}
    assert tokenizer.is_control(256)
    assert tokenizer.encode("a<stop>") == [ord("a"), 256]


def test_a_family_can_keep_a_token_from_ending(make_tokenizer) -> None:
    specials = [("</s>", CONTROL), ("<|im_end|>", CONTROL)]
    tokenizer = make_tokenizer(
        [], specials, eos_token_id=256, chat=ChatFormat(keep_tokens=("</s>",))
    )
    assert tokenizer.eog == {257}
    assert tokenizer.eos == 256


@pytest.mark.parametrize("token", [-1, 257, 2**31, 2**32 - 1, 2**63])
@pytest.mark.parametrize("name", ["bos", "eos", "eot", "eom"])
def test_an_id_outside_of_the_vocabulary_is_ignored_with_a_warning(
    make_tokenizer, caplog, name, token
) -> None:
    tokenizer = make_tokenizer([], [("<end>", NORMAL)], **{f"{name}_token_id": token})
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eog) == (None, None, frozenset())
    assert f"tokenizer.ggml.{name}_token_id" in caplog.text
    assert "model.gguf" in caplog.text


# -- ids never shift ------------------------------------------------------------------------------


def test_of_equal_texts_the_last_in_use_is_encoded_and_all_are_decoded(make_tokenizer) -> None:
    specials = [("<a>", CONTROL), ("<a>", CONTROL), ("<a>", UNUSED), ("q", NORMAL), ("", NORMAL)]
    tokenizer = make_tokenizer([], specials)
    assert tokenizer.vocab_size == 261
    assert tokenizer.encode("<a>q") == [257, 259]
    assert [tokenizer.token_bytes(token) for token in range(256, 261)] == [
        b"<a>",
        b"<a>",
        b"",
        b"q",
        b"",
    ]


def test_unused_tokens_are_neither_read_nor_written(make_tokenizer) -> None:
    tokenizer = make_tokenizer([], [("[PAD256]", UNUSED)])
    assert 256 not in tokenizer.encode("[PAD256]")
    assert tokenizer.token_bytes(256) == b""


def test_without_types_all_tokens_are_ordinary(make_tokenizer) -> None:
    tokenizer = make_tokenizer([], [("<|im_end|>", CONTROL)], token_type=None)
    assert not tokenizer.is_control(256)
    assert tokenizer.eog == frozenset()


# -- files that cannot be used --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"tokens": None}, ["tokenizer.ggml.tokens"]),
        ({"tokens": []}, ["tokenizer.ggml.tokens", "empty"]),
        ({"tokens": [1, 2]}, ["tokenizer.ggml.tokens", "strings"]),
        ({"token_type": [1, 1]}, ["tokenizer.ggml.token_type", "2 entries for 257 tokens"]),
        ({"token_type": [1] * 256 + [9]}, ["tokenizer.ggml.token_type", "9"]),
        ({"token_type": [1] * 256 + [-1]}, ["tokenizer.ggml.token_type", "-1"]),
        ({"token_type": [1] * 256 + [2**31]}, ["tokenizer.ggml.token_type", f"{2**31}"]),
        ({"eos_token_id": 5.0}, ["tokenizer.ggml.eos_token_id", "expected an integer"]),
        ({"merges": None}, ["tokenizer.ggml.merges"]),
        ({"merges": ["h i", "x"]}, ["tokenizer.ggml.merges", "entry 1", "'x'"]),
        ({"merges": ["hi hi"]}, ["tokenizer.ggml.merges", "'hi hi'"]),
        ({"model": None}, ["tokenizer.ggml.model"]),
        ({"eos_token_id": "two"}, ["tokenizer.ggml.eos_token_id", "string"]),
        ({"tokens": ["a", "b" * 4097]}, ["tokenizer.ggml.tokens", "token 1", "4097", "4096"]),
    ],
)
def test_a_broken_file_is_refused_by_key_and_path(make_tokenizer, keys, words) -> None:
    with pytest.raises(ModelFormatError) as caught:
        make_tokenizer(["h i"], **keys)
    for word in ["model.gguf", *words]:
        assert word in str(caught.value)


def test_a_text_that_looks_like_a_made_up_name_moves_no_id(make_metadata) -> None:
    texts = [f"\0{257}", "", "\0"]
    meta = make_metadata([], [(text, NORMAL) for text in texts])
    ids = read_vocabulary(meta, ChatFormat()).ids
    assert list(ids)[256:] == [f"\0{256}", f"\0{257}", "\0"]
    assert list(ids.values()) == list(range(259))


def test_a_file_without_an_id_gets_the_default_with_a_warning(make_tokenizer, caplog) -> None:
    tokenizer = make_tokenizer(pre=None)
    assert tokenizer.decode(tokenizer.encode("a<=b")) == "a<=b"
    assert "tokenizer.ggml.pre" in caplog.text


def test_a_model_that_is_not_byte_level_is_looked_up_by_its_name(
    make_metadata, stub_family
) -> None:
    meta = make_metadata(model="words")
    with pytest.raises(UnsupportedModelError, match="'words'"):
        Tokenizer.from_metadata(meta, [])
    words = stub_family("w", (PreTokenizer("words", (), symbols="syllables"),))
    with pytest.raises(UnsupportedModelError, match=r"'words' merges 'syllables' symbols"):
        Tokenizer.from_metadata(meta, [words])


def test_bytes_without_a_token_are_reported(make_tokenizer, caplog) -> None:
    letters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    with caplog.at_level(logging.INFO):
        make_tokenizer(tokens=letters, token_type=None, merges=[])
    assert {record.levelname for record in caplog.records} == {"INFO"}, "it is so by design"
    assert "0x0A" in caplog.text
    assert "0xC0" not in caplog.text
