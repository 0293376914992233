"""Letters, cut into pieces and put together again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.clusters.hosts import wire
from paceline.clusters.hosts.wire import LETTER_BYTES, LetterReader, write_letter
from paceline.clusters.process.channel import Letter
from paceline.errors import FrameError

LARGE = [bytes(200_000), b"", bytes(range(256)) * 1000]


def read(reader: LetterReader, pieces: list[bytes]) -> list[Letter | None]:
    return [reader.take(memoryview(piece)) for piece in pieces]


def pieces_of(*blobs: bytes, **values: Any) -> list[bytes]:
    return list(write_letter("done", values, blobs))


@given(st.lists(st.integers(0, 200_000), max_size=5), st.integers(0, 100_000))
def test_a_letter_comes_whole_whatever_its_size(sizes: list[int], text: int):
    blobs = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    pieces = pieces_of(*blobs, text="x" * text)
    *before, letter = read(LetterReader(), pieces)
    assert before == [None] * (len(pieces) - 1)
    assert letter is not None
    assert (letter.word, letter.values, letter.blobs) == ("done", {"text": "x" * text}, blobs)


def test_no_piece_is_larger_than_some_kilobytes():
    assert max(len(piece) for piece in pieces_of(*LARGE, text="x" * 300_000)) < 2**16 + 100


def test_letters_come_one_after_the_other():
    reader = LetterReader()
    letters = [letter for letter in read(reader, pieces_of(*LARGE) + pieces_of(b"x") + pieces_of()) if letter]
    assert [letter.blobs for letter in letters] == [LARGE, [b"x"], []]


def test_a_letter_that_breaks_off_is_forgotten_when_the_next_begins():
    reader = LetterReader()
    assert read(reader, pieces_of(*LARGE)[:-1] + pieces_of(b"x"))[-1] == Letter("done", {}, [bytearray(b"x")])


def test_a_letter_too_large_is_refused_by_its_first_piece_and_by_its_writer(monkeypatch: pytest.MonkeyPatch):
    reader = LetterReader()
    first, *_ = pieces_of(*LARGE)
    claim = wire._PREFIX.pack(b"PLL1", 10, LETTER_BYTES + 1, 0) + first[wire._PREFIX.size :]
    with pytest.raises(FrameError, match="a letter of more than"):
        reader.take(memoryview(claim))
    monkeypatch.setattr(wire, "LETTER_BYTES", 400_000)
    with pytest.raises(
        FrameError, match=r"a letter of 456,\d+ bytes \(done\) cannot be sent; the most is 400,000"
    ):
        next(write_letter("done", {}, LARGE))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda pieces: pieces[1:], "a piece out of turn"),
        (lambda pieces: pieces[:2] + pieces[3:], "a piece out of turn"),
        (lambda pieces: [pieces[0], pieces[1], pieces[1]], "a piece out of turn"),
        (lambda pieces: [pieces[0], pieces[1] + b"x" * 150_000], "a piece of a wrong length"),
        (lambda pieces: [b"PLL1"], "a piece of nothing"),
        (lambda pieces: [pieces[0][: wire._PREFIX.size]], "a piece of nothing"),
        (lambda pieces: [b"x" * 100], "not a piece of a letter"),
    ],
)
def test_a_piece_that_is_not_the_next_is_refused_and_the_next_letter_arrives(change: Any, reason: str):
    reader = LetterReader()
    with pytest.raises(FrameError, match=reason):
        read(reader, change(pieces_of(*LARGE)))
    assert read(reader, pieces_of(b"x"))[-1] is not None


@pytest.mark.parametrize(
    "head", [b"\xc1", b"\x01", b"\x93\x01\x80\x90", b"\x93\xa1x\x80\x80", b"\x93\xa1x\x80\x91\x05"]
)
def test_a_head_that_is_none_is_refused(head: bytes):
    piece = wire._PREFIX.pack(b"PLL1", len(head), len(head), 0) + head
    with pytest.raises(FrameError, match="not a letter"):
        LetterReader().take(memoryview(piece))
