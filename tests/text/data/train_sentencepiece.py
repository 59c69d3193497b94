"""Trains the vocabulary of ``sentencepiece.json`` and notes how SentencePiece itself reads texts.

Run from the root of the repository, with the packages ``sentencepiece`` and ``protobuf`` installed:

    python tests/text/data/train_sentencepiece.py

The vocabulary has what makes those of released models awkward: tags and runs of spaces and line
ends that are tokens, control tokens, a token for each byte, and characters that have no other.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CORPUS = ("docs/architecture.md", "docs/plugins.md")
SENTENCES = """\
Der Hund läuft über die Straße, während die Kinder im Garten spielen.
Où est la bibliothèque ? Elle est fermée à midi, même l'été.
El niño comió mañana, ¡qué rápido!
Привет, как дела? Сегодня хорошая погода, пойдём гулять.
你好，世界。今天天气很好，我们去公园散步吧。
こんにちは、世界。今日はいい天気ですね。
안녕하세요 세계. 오늘은 날씨가 좋습니다.
def f(x):\treturn [x ** 2 for _ in range(10)]  # 0123456789
"""
SIZE = 1000
CONTROL = ["<turn>", "</turn>"]
USER_DEFINED = [
    *("\n" * count for count in range(1, 6)),
    *("▁" * count for count in range(2, 9)),
    *("<b>", "</b>", "<td>", "</td>", "</s>"),
]
TYPES = {"NORMAL": 1, "UNKNOWN": 2, "CONTROL": 3, "USER_DEFINED": 4, "BYTE": 6}

TEXTS = [
    "",
    " ",
    "Hello, world",
    " leading",
    "trailing ",
    "a  b   c    d     e",
    " " * 8,
    " " * 30 + "x",
    "one\ntwo\n\nthree\n\n\n\n\n\n\n\nten",
    "\n \n  \n",
    "\ta\t\tb\r\nc",
    "über die Straße, même l'été",
    "e\u0301te\u0301 n\u0303",
    "Привет, мир",
    "你好，世界。龘",
    "こんにちは 세계",
    "हिन्दी में ภาษาไทย",
    "السلام עליכם",
    "🙂🙃 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽",
    "\U0001f1eb\U0001f1f7\U0001f1e9\U0001f1ea",
    "a\u200bb\ufeffc\u200dd\u2060",
    "a\x00b\x01\x7f\x1b[0m",
    "\ufffd\ue000\U000e0001",
    "a\u00a0b\u2003c\u3000d",
    "0123456789 3.14159 1,000",
    "aaaaaaaaaaaaaaaaaaaaa",
    "----------======....",
    "the the  thethe",
    "def f(x):\n    return [x**2]  # ok\n",
    "<b>bold</b> <td></td></td></s>",
    "< b > <b <<b>> <|b|>",
    "<0x0A><0x41> <unk> <s> <eos>",
    "x" * 100 + "é" * 50 + "漢" * 50,
    "tokens of a block, the state of a sequence, checkpoints",
]


def train() -> bytes:
    lines = [*SENTENCES.splitlines() * 40]
    for name in CORPUS:
        lines += (ROOT / name).read_text("utf-8").splitlines()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=SIZE,
        byte_fallback=True,
        character_coverage=0.995,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        add_dummy_prefix=False,
        control_symbols=CONTROL,
        user_defined_symbols=USER_DEFINED,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        eos_piece="<eos>",
        bos_piece="<bos>",
    )
    return model.getvalue()


def ids(model: bytes, *, space_prefix: bool) -> list[list[int]]:
    settings = sentencepiece_model_pb2.ModelProto.FromString(model)
    settings.normalizer_spec.add_dummy_prefix = space_prefix
    processor = sentencepiece.SentencePieceProcessor(model_proto=settings.SerializeToString())
    return [processor.encode(text) for text in TEXTS]


def main() -> None:
    model = train()
    pieces = sentencepiece_model_pb2.ModelProto.FromString(model).pieces
    content = {
        "tokens": [piece.piece for piece in pieces],
        "scores": [piece.score for piece in pieces],
        "types": [TYPES[piece.Type.Name(piece.type)] for piece in pieces],
        "texts": TEXTS,
        "ids": ids(model, space_prefix=False),
        "ids_with_a_space_in_front": ids(model, space_prefix=True),
    }
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    (HERE / "sentencepiece.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
