"""Reading, cutting and dividing of training texts."""

from __future__ import annotations

import pytest

from kinfolk.errors import RequestError
from kinfolk.train.texts import Text, divide, fingerprint, pieces, read_documents


def test_files_folders_and_lines_are_documents(tmp_path):
    (tmp_path / "one.txt").write_text("first")
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (folder / "b.py").write_text("third")
    (folder / "below" / "a.py").write_text("fourth")
    (folder / "image.png").write_bytes(b"\x89PNG\xff")
    (folder / ".hidden").write_text("never")
    (folder / "empty.txt").write_text(" \n")
    (tmp_path / "lines.jsonl").write_text('{"text": "second"}\n\n{"text": "\u2028 too", "n": 1}\n')
    found = read_documents([tmp_path / "one.txt", tmp_path / "lines.jsonl", folder])
    assert found == ["first", "second", "\u2028 too", "third", "fourth"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, r"missing\.txt: cannot be read: No such file"),
        ("a.txt", b"ab\xff", r"a\.txt: byte 2 is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"prompt": 1}', r"a\.jsonl: line 2 is no JSON object"),
        ("a.jsonl", b"\n[1]", r"a\.jsonl: line 2"),
        ("a.jsonl", b"{", r"a\.jsonl: line 1"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match=message):
        read_documents([tmp_path / name])


def test_a_folder_without_text_is_named(tmp_path):
    with pytest.raises(RequestError, match="holds no text"):
        read_documents([tmp_path])


def test_pieces_that_are_too_short_are_left_out():
    found = pieces([range(10), range(3), range(8)], length=4, least=3)
    assert [[len(text.tokens) for text in document] for document in found] == [[4, 4], [3], [4, 4]]
    assert found[0][1].tokens == (4, 5, 6, 7)


def test_a_block_needs_a_token_before_it_and_two_to_learn():
    assert Text((1, 2, 3, 4, 5), first=1).holds_block(4)
    assert not Text((1, 2, 3, 4), first=1).holds_block(4)
    assert not Text((1, 2, 3, 4, 5), first=4).holds_block(4)


def documents(count, size=2):
    return [[Text((n, k, 0)) for k in range(size)] for n in range(count)]


def test_whole_documents_are_held_out():
    texts, held_out = divide(documents(40), None, seed=1)
    assert len(held_out) == 4
    assert len(texts) == 76
    assert {t.tokens[0] for t in texts}.isdisjoint(t.tokens[0] for t in held_out)
    assert divide(documents(40), None, seed=1) == (texts, held_out)
    assert divide(documents(40), None, seed=2) != (texts, held_out)


@pytest.mark.parametrize(
    "sizes",
    [(100, 2, 2), (70,) * 10, (70,) * 3, (5, 5), (1, 1), (40, 3), (1, *(70,) * 40), (2,) * 30],
)
def test_no_more_are_held_out_than_one_in_twenty_and_none_is_learned(sizes):
    made = [[Text((n, i)) for i in range(size)] for n, size in enumerate(sizes)]
    for seed in range(6):
        texts, held_out = divide(made, None, seed)
        assert sorted((*texts, *held_out), key=lambda t: t.tokens) == [t for d in made for t in d]
        assert len(held_out) == min(64, max(1, sum(sizes) // 20))
        on_both = {t.tokens[0] for t in texts} & {t.tokens[0] for t in held_out}
        assert on_both <= {n for n, size in enumerate(sizes) if size == max(sizes)}
        assert len(on_both) <= 1


def test_pieces_of_a_single_document_are_held_out():
    texts, held_out = divide(documents(1, 30), None, seed=0)
    assert (len(texts), len(held_out)) == (29, 1)


def test_the_number_of_texts_can_be_limited():
    texts, held_out = divide(documents(40), 10, seed=0)
    assert len(texts) + len(held_out) == 10


def test_a_single_text_is_not_enough():
    with pytest.raises(RequestError, match="a single text"):
        divide(documents(1, 1), None, seed=0)


def test_a_fingerprint_knows_where_documents_end():
    assert fingerprint(["ab", "c"]) == fingerprint(["ab", "c"])
    assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])
