"""SentencePiece vocabularies: ids of SentencePiece and llama.cpp, from scores alone, and back."""

from __future__ import annotations

import heapq
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.metadata import Metadata
from kinfolk.text.formats import ChatFormat, PreTokenizer
from kinfolk.text.merges import read_merges
from kinfolk.text.stream import Detokenizer, TextStream
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.text.vocabulary import read_vocabulary

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
DATA: Mapping[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "sentencepiece.json").read_text("utf-8")
)
TEXTS: Sequence[str] = DATA["texts"]
NAMES = [f"{text[:24]!r}" for text in TEXTS]


class PlainSentencePiece:
    """The algorithm of llama.cpp, written plainly and without regard to speed.

    Special tokens are taken out, longest first. Then of all neighbours that make a token those are
    joined whose token has the highest score, of equal scores the leftmost. A user-defined token of
    spaces is spelled with spaces, as llama.cpp's converter does: no neighbours make it.
    """

    def __init__(self, tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]):
        kinds = list(zip(tokens, types, strict=True))
        texts = [text.replace("▁", " ") if kind == USER_DEFINED else text for text, kind in kinds]
        self.ids = {text: token for token, text in enumerate(texts)}
        self.scores = scores
        whole = {CONTROL, USER_DEFINED, UNKNOWN}
        specials = [text for text, kind in zip(texts, types, strict=True) if kind in whole]
        self.specials = sorted(specials, key=lambda text: -len(text.encode()))

    def encode(self, text: str, *, space: bool) -> list[int]:
        ids: list[int] = []
        for part in self.split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self.merge(f"{' ' if space else ''}{part}".replace(" ", "▁"))
        return ids

    def split(self, text: str) -> list[str | int]:
        parts: list[str | int] = [text] if text else []
        for special in self.specials:
            found: list[str | int] = []
            for part in parts:
                if isinstance(part, int):
                    found.append(part)
                    continue
                for index, plain in enumerate(part.split(special)):
                    found += [self.ids[special]] if index else []
                    found += [plain] if plain else []
            parts = found
        return parts

    def merge(self, text: str) -> list[int]:
        symbols = list(text)
        after = [*range(1, len(symbols)), -1]
        before = list(range(-1, len(symbols) - 1))
        queue: list[tuple[float, int, int, str]] = []

        def consider(left: int, right: int) -> None:
            if left >= 0 and right >= 0 and (joined := symbols[left] + symbols[right]) in self.ids:
                heapq.heappush(queue, (-self.scores[self.ids[joined]], left, right, joined))

        for place in range(len(symbols) - 1):
            consider(place, place + 1)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != joined:
                continue
            symbols[left], symbols[right] = joined, ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            consider(before[left], left)
            consider(left, after[left])
        return [token for symbol in symbols if symbol for token in self.spell(symbol)]

    def spell(self, symbol: str) -> list[int]:
        if symbol in self.ids:
            return [self.ids[symbol]]
        return [self.ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]


def metadata(
    tokens: Sequence[str], scores: Sequence[float] | None, types: Sequence[int], **keys: Any
) -> Metadata:
    values = {
        "model": "llama",
        "tokens": list(tokens),
        "scores": None if scores is None else np.array(scores, np.float32),
        "token_type": list(types),
        **keys,
    }
    return Metadata.from_dict(
        {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None},
        Path("model.gguf"),
    )


def trained(*, spaces: str = "▁", **keys: Any) -> Tokenizer:
    """The trained vocabulary. Some converters write a user-defined ``▁`` as a space."""
    kinds = zip(DATA["tokens"], DATA["types"], strict=True)
    tokens = [text.replace("▁", spaces) if kind == USER_DEFINED else text for text, kind in kinds]
    keys = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3} | keys
    return Tokenizer.from_metadata(metadata(tokens, DATA["scores"], DATA["types"], **keys))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return trained(add_space_prefix=False)


@pytest.fixture(scope="module")
def with_space() -> Tokenizer:
    """A file without a key for the space in front of a text; readers then add one."""
    return trained()


@pytest.fixture(scope="module")
def plain() -> PlainSentencePiece:
    return PlainSentencePiece(DATA["tokens"], DATA["scores"], DATA["types"])


@pytest.fixture(scope="module")
def make() -> Callable[..., Tokenizer]:
    """``make(tokens)``: all bytes, then tokens with their scores, then ``extra`` with types."""

    def build(
        tokens: Mapping[str, float], extra: Sequence[tuple[str, int]] = (), **keys: Any
    ) -> Tokenizer:
        listed = [
            *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(keys.pop("bytes_", 256))),
            *((text, score, NORMAL) for text, score in tokens.items()),
            *((text, 0.0, kind) for text, kind in extra),
        ]
        texts, scores, types = zip(*listed, strict=True)
        keys = {"add_space_prefix": False, "add_bos_token": False} | keys
        return Tokenizer.from_metadata(metadata(texts, scores, types, **keys))

    return build


def texts(tokenizer: Tokenizer, text: str, **options: Any) -> list[str]:
    ids = tokenizer.encode(text, add_bos=False, **options)
    return [tokenizer.token_text(token) for token in ids]


# -- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spaces", [" ", "▁"])
def test_ids_are_those_of_sentencepiece(spaces: str) -> None:
    tokenizer = trained(spaces=spaces, add_space_prefix=False)
    for text, expected in zip(TEXTS, DATA["ids"], strict=True):
        found = tokenizer.encode(text, add_bos=False, parse_special=False)
        assert found == expected, text


def test_ids_with_a_space_in_front_are_those_of_sentencepiece(with_space, plain) -> None:
    """Except for texts that begin with a space or hold special tokens: there llama.cpp decides."""
    compared = 0
    for text, expected in zip(TEXTS, DATA["ids_with_a_space_in_front"], strict=True):
        if plain.split(text) == [text] and text[0] != " ":
            assert with_space.encode(text, add_bos=False) == expected, text
            compared += 1
    assert compared >= 15


def test_ids_are_those_of_llama_cpp(tokenizer, with_space, adversarial) -> None:
    """Noted from ``llama_tokenize`` of its version 0.5.0, on files of this vocabulary."""
    noted = json.loads((Path(__file__).parent / "data" / "llama_cpp.json").read_text("utf-8"))
    assert set(noted) == {*TEXTS, *adversarial.values()}
    for text, (expected, spaced) in noted.items():
        assert tokenizer.encode(text, add_bos=False) == expected, text
        assert with_space.encode(text, add_bos=False) == spaced, text


TEXT = st.text(
    st.sampled_from(" \n\t<>/bstdurneiagé漢🙂▁|") | st.characters(codec="utf-8"), max_size=40
)


@given(text=TEXT)
@example(text=" ")
@example(text=" a▁ ▁▁b")
def test_any_string_equals_the_plain_algorithm(tokenizer, with_space, plain, text: str) -> None:
    assert tokenizer.encode(text, add_bos=False) == plain.encode(text, space=False)
    assert with_space.encode(text, add_bos=False) == plain.encode(text, space=True)


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[list[str], list[float]]:
    """A few letters and what pairs of tokens make, with different scores in any order."""
    tokens = [*"abc"[: draw(st.integers(1, 3))], "▁"]
    for _ in range(draw(st.integers(2, 14))):
        halves = st.sampled_from(tokens)
        joined = draw(halves) + draw(halves)
        if joined not in tokens and len(joined) < 12:
            tokens.append(joined)
    scores = draw(st.permutations([-float(rank) for rank in range(len(tokens))]))
    return tokens, scores


@given(vocabulary=vocabularies(), data=st.data())
def test_any_vocabulary_of_different_scores_equals_the_plain_algorithm(vocabulary, data) -> None:
    tokens, scores = vocabulary
    types = [NORMAL] * len(tokens)
    plain = PlainSentencePiece(tokens, scores, types)
    found = Tokenizer.from_metadata(metadata(tokens, scores, types, add_space_prefix=False))
    letters = st.sampled_from([text for text in tokens if text != "▁"] + [" "])
    for text in data.draw(st.lists(st.lists(letters, max_size=12), min_size=1, max_size=8)):
        joined = "".join(text).replace("▁", " ")
        assert found.encode(joined) == plain.encode(joined, space=False)


@pytest.mark.parametrize("longest", [2, 3, 5, 8, 31])
def test_runs_whose_tokens_share_a_score_are_as_long_as_they_can_from_the_left(longest) -> None:
    """Released files give all runs of spaces one score, highest or lowest of all."""
    tokens = ["a", "▁", *("▁" * count for count in range(2, longest + 1)), "▁a"]
    for score in (1.0, -1e9):
        scores = [-1.0, *[score] * longest, -2.0]
        types = [NORMAL] * len(tokens)
        plain = PlainSentencePiece(tokens, scores, types)
        found = Tokenizer.from_metadata(metadata(tokens, scores, types, add_space_prefix=False))
        for count in range(80):
            text = " " * count + "a" + " " * (count // 2)
            assert found.encode(text) == plain.encode(text, space=False), count


def test_strings_equal_transformers(tmp_path, with_space, plain, adversarial) -> None:
    """transformers builds it from the same file, without user-defined tokens."""
    from transformers import AutoTokenizer

    from kinfolk.gguf.output import GGUFOutput

    keys = {
        "general.architecture": "llama",
        **_shape_of_a_llama(),
        **{
            f"tokenizer.ggml.{key}": value
            for key, value in {
                "model": "llama",
                "tokens": DATA["tokens"],
                "scores": np.array(DATA["scores"], np.float32),
                "token_type": np.array(DATA["types"], np.int32),
                "bos_token_id": 2,
                "eos_token_id": 1,
                "unknown_token_id": 3,
            }.items()
        },
    }
    with GGUFOutput(tmp_path / "model.gguf", keys, []):
        pass
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    compared = 0
    for text in (*adversarial.values(), *TEXTS):
        if plain.split(text) == [text] and text[0] != " ":
            expected = theirs.encode(text, add_special_tokens=False)
            assert with_space.encode(text, add_bos=False) == expected, text
            compared += 1
    assert compared >= 50


def _shape_of_a_llama() -> dict[str, object]:
    names = ("context_length", "embedding_length", "block_count", "feed_forward_length")
    return {f"llama.{name}": 8 for name in names} | {
        "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }


def test_neither_families_nor_patterns_are_asked_how_text_is_cut(stub_family) -> None:
    other = PreTokenizer("llama", (r"\d",), symbols="characters", needs_bos=True)
    meta = metadata(DATA["tokens"], DATA["scores"], DATA["types"], bos_token_id=2)
    alone = Tokenizer.from_metadata(meta)
    beside = Tokenizer.from_metadata(meta, [stub_family("other", (other,))], own="mine")
    assert alone.encode("one 12") == beside.encode("one 12")


def test_a_family_can_vary_how_its_own_files_are_read(stub_family) -> None:
    mine = PreTokenizer("llama", (), symbols="sentencepiece", needs_bos=True)
    keys = {"bos_token_id": 2, "add_bos_token": False}
    meta = metadata(DATA["tokens"], DATA["scores"], DATA["types"], **keys)
    assert not Tokenizer.from_metadata(meta).adds_bos
    assert Tokenizer.from_metadata(meta, [stub_family("mine", (mine,))], own="mine").adds_bos


def test_a_text_begins_with_bos_unless_the_file_denies_it() -> None:
    assert trained().encode("a")[0] == 2
    assert trained(add_bos_token=True).encode("a")[0] == 2
    assert trained(add_bos_token=False).encode("a")[0] != 2


def test_files_of_gemma4_may_list_scores_too(stub_family) -> None:
    """Lines are cut as its own files have them, and merged by score."""
    from kinfolk_gemma4.text import PRETOKENIZERS

    family = stub_family("gemma4", PRETOKENIZERS)
    meta = metadata(DATA["tokens"], DATA["scores"], DATA["types"], model="gemma4", bos_token_id=2)
    found = Tokenizer.from_metadata(meta, [family], own="gemma4")
    for text, expected in zip(TEXTS, DATA["ids"], strict=True):
        assert found.encode(text, add_bos=False, parse_special=False) == expected, text
    spaced = metadata(
        DATA["tokens"], DATA["scores"], DATA["types"], bos_token_id=2, add_bos_token=False
    )
    assert Tokenizer.from_metadata(spaced, [family], own="gemma4").adds_bos


# -- characters that merging cannot make ----------------------------------------------------------


def test_no_text_can_spell_a_byte_or_a_special_token(make) -> None:
    letters = dict.fromkeys("<0x4>1eos", -1.0)
    chain = {"<0": 0.0, "<0x": 0.0, "1>": 0.0, "<e": 0.0, "os": 0.0, "os>": 0.0}
    tokenizer = make(letters | chain, [("<eos>", CONTROL), ("<0x4", UNUSED), ("x4", NORMAL)])
    assert texts(tokenizer, "<0x41>") == ["<0x", "4", "1>"]
    assert texts(tokenizer, "<eos>", parse_special=False) == ["<e", "os>"]
    assert texts(tokenizer, "<eos>") == ["<eos>"]


def test_a_byte_without_a_character_joins_nothing(make) -> None:
    """A token may begin with the text of a byte."""
    tokenizer = make({"a": -1.0, "<0xC3>a": 0.0})
    assert texts(tokenizer, "\u00f0a") == ["<0xC3>", "<0xB0>", "a"]


def test_what_nothing_spells_is_the_unknown_token(make, caplog) -> None:
    caplog.set_level(logging.INFO, "kinfolk.text")
    listed = {"a": -1.0, "b": -2.0}
    tokenizer = make(listed, [("<unk>", UNKNOWN)], bytes_=0, unknown_token_id=2)
    assert texts(tokenizer, "aéèb") == ["a", "<unk>", "b"]
    assert "replaces them by '<unk>'" in caplog.text


# -- scores that cannot be used, or say little ----------------------------------------------------


def test_equal_scores_leave_the_order_of_ids(make, caplog) -> None:
    """Some converters write a placeholder; ids are in the order in which tokens were made."""
    ranked = dict.fromkeys(["a", "b", "c", "bc", "ab", "abc"], -1000.0)
    assert texts(make(ranked), "abc ab") == ["abc", "<0xE2>", "<0x96>", "<0x81>", "ab"]
    assert texts(make(ranked), "abcb") == ["abc", "b"]
    assert "all tokens the same score" in caplog.text
    assert "tokenizer.ggml.scores" in caplog.text


def test_merges_that_a_file_lists_count_more_than_its_scores(make) -> None:
    tokens = {"a": -1.0, "b": -1.0, "c": -1.0, "ab": -2.0, "bc": -3.0}
    assert texts(make(tokens), "abc") == ["ab", "c"]
    assert texts(make(tokens, merges=["b c", "a b"]), "abc") == ["a", "bc"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"scores": None}, ["tokenizer.ggml.merges", "tokenizer.ggml.scores", "neither"]),
        ({"scores": [0.0]}, ["tokenizer.ggml.scores", "1 entries for 2 tokens"]),
        ({"scores": [0.0, float("nan")]}, ["entry 1", "tokenizer.ggml.scores", "not a number"]),
        ({"scores": ["a", "b"]}, ["tokenizer.ggml.scores", "numbers"]),
        ({"add_space_prefix": "no"}, ["tokenizer.ggml.add_space_prefix"]),
    ],
)
def test_a_broken_file_is_refused_by_key_and_path(keys, words) -> None:
    meta = Metadata.from_dict(
        {
            f"tokenizer.ggml.{key}": value
            for key, value in {
                "model": "llama",
                "tokens": ["a", "b"],
                "scores": [0.0, -1.0],
                **keys,
            }.items()
            if value is not None
        },
        Path("model.gguf"),
    )
    with pytest.raises(ModelFormatError) as caught:
        Tokenizer.from_metadata(meta)
    for word in ["model.gguf", *words]:
        assert word in str(caught.value)


def test_merges_are_every_way_to_make_a_token_of_two_by_score() -> None:
    tokens = ["a", "b", "ab", "ba", "aba", "<x>", "x"]
    types = [NORMAL] * 5 + [CONTROL, NORMAL]
    meta = metadata(tokens, [0, 0, -1, -3, -2, 0, 0], types)
    found = read_merges(meta, read_vocabulary(meta, ChatFormat()), scored=True)
    assert found == [("a", "b"), ("ab", "a"), ("a", "ba"), ("b", "a")]


# -- the space in front ---------------------------------------------------------------------------


def test_a_space_stands_in_front_of_a_text_and_of_what_follows_a_special_token(make) -> None:
    tokens = {"a": -1.0, "▁": -2.0, "▁a": -3.0}
    tokenizer = make(tokens, [("<s>", CONTROL)], add_space_prefix=True)
    assert texts(tokenizer, "a<s>a<s><s>") == ["▁a", "<s>", "▁a", "<s>", "<s>"]
    assert texts(tokenizer, " a") == ["▁", "▁a"]
    assert texts(tokenizer, "") == []


def test_byte_level_files_never_get_a_space(make_tokenizer) -> None:
    tokenizer = make_tokenizer(add_space_prefix=True)
    assert tokenizer.encode("a") == [ord("a")]


# -- back to text ---------------------------------------------------------------------------------


ANY = st.text(
    st.sampled_from(" \n<>/bs") | st.characters(codec="utf-8", exclude_characters="▁"), max_size=40
)


@given(text=ANY)
def test_decoding_gives_the_text_back(tokenizer, with_space, text: str) -> None:
    for each in (tokenizer, with_space):
        assert each.decode(each.encode(text, add_bos=False)) == text
        assert each.decode(each.encode(text), skip_control=True) == text
        assert each.decode(each.encode(text, add_bos=False, parse_special=False)) == text


@pytest.mark.parametrize("text", TEXTS, ids=NAMES)
@pytest.mark.parametrize("spaces", [" ", "▁"])
def test_awkward_texts_survive(text: str, spaces: str) -> None:
    for keys in ({"add_space_prefix": False}, {}):
        tokenizer = trained(spaces=spaces, **keys)
        ids = tokenizer.encode(text, add_bos=False)
        assert tokenizer.decode(ids) == text
        stream = Detokenizer(tokenizer, show_control=True)
        assert "".join(map(stream.feed, ids)) + stream.finish() == text


def test_bytes_wait_for_the_rest_of_their_character(tokenizer) -> None:
    ids = tokenizer.encode("a🙂b", add_bos=False)
    stream = TextStream(tokenizer)
    assert [stream.feed([token]) for token in ids] == ["a", "", "", "", "🙂", "b"]


def test_an_answer_keeps_the_space_that_goes_on_with_a_text(with_space) -> None:
    """Only after a special token is the space one that the tokenizer added."""
    prompt = with_space.encode("Hello")
    answer = with_space.encode("the", add_bos=False)
    assert with_space.token_bytes(answer[0]).startswith(b" ")
    assert TextStream(with_space, before=prompt[-1]).feed(answer) == " the"
    turn = with_space.encode("<turn>", add_bos=False)
    assert TextStream(with_space, before=turn[-1]).feed(answer) == "the"
    assert TextStream(with_space).feed([*turn, *answer]) == "the"
    assert with_space.decode([*prompt, *answer], skip_control=True) == "Hello the"
