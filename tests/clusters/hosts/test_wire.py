"""Messages that arrive in pieces of any size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import raised

from paceline.clusters.hosts import wire
from paceline.clusters.hosts.wire import LETTER_BYTES, LetterReader, write_letter
from paceline.errors import FrameError

LARGE = [bytes(200_000), b"", bytes(range(256)) * 1000]


def data_of(*blobs: bytes, **values: Any) -> bytes:
    return b"".join(write_letter("done", values, blobs))


@given(
    st.lists(st.lists(st.integers(0, 100_000), max_size=4), min_size=1, max_size=3),
    st.integers(0, 100_000),
    st.sampled_from([1, 7, 19, 20, 21, 4096, 2**18]),
)
def test_letters_arrive_whole_whatever_their_sizes_and_their_pieces(
    letters: list[list[int]], text: int, first: int
):
    blobs = [[bytes([number + 1]) * size for number, size in enumerate(sizes)] for sizes in letters]
    data = memoryview(b"".join(data_of(*each, text="x" * text) for each in blobs))
    reader = LetterReader()
    found = reader.take(data[:first])
    for start in range(first, len(data), 2**16):
        found += reader.take(data[start : start + 2**16])
    assert [(letter.word, letter.values, letter.blobs) for letter in found] == [
        ("done", {"text": "x" * text}, each) for each in blobs
    ]
    assert reader.offset == 0


def test_memory_grows_with_what_has_arrived_not_with_what_is_announced():
    reader = LetterReader()
    reader.take(memoryview(wire._PREFIX.pack(wire._MAGIC, LETTER_BYTES // 2, LETTER_BYTES) + bytes(1000)))
    assert sum(len(section) for section in reader._sections) == wire._PREFIX.size + 1000


def test_a_letter_too_large_is_refused_by_its_prefix_and_by_its_writer(monkeypatch: pytest.MonkeyPatch):
    claim = wire._PREFIX.pack(wire._MAGIC, 10, LETTER_BYTES + 1)
    with raised(FrameError, f"{LETTER_BYTES:,}"):
        LetterReader().take(memoryview(claim))
    monkeypatch.setattr(wire, "LETTER_BYTES", 400_000)
    with raised(FrameError, "done", "400,000"):
        write_letter("done", {}, LARGE)


def test_what_does_not_begin_as_a_letter_is_refused():
    with pytest.raises(FrameError):
        LetterReader().take(memoryview(b"x" * 100))


@pytest.mark.parametrize(
    "head", [b"\xc1", b"\x01", b"\x93\x01\x80\x90", b"\x93\xa1x\x80\x80", b"\x93\xa1x\x80\x91\x05"]
)
def test_a_head_that_is_none_is_refused(head: bytes):
    data = wire._PREFIX.pack(wire._MAGIC, len(head), len(head)) + head
    with pytest.raises(FrameError):
        LetterReader().take(memoryview(data))
