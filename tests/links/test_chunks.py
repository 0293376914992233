import dataclasses
from dataclasses import dataclass

import pytest
import torch

from paceline.errors import FrameError
from paceline.links.chunks import (
    CHUNK_BYTES,
    FIRST,
    FIRST_BYTES,
    MORE,
    OFFER,
    PREFIX_BYTES,
    STREAMED,
    TAKEN,
    WINDOW_BYTES,
    Arrivals,
    cost_bytes,
    pack_prefix,
)
from paceline.links.frames import HEADER_BYTES, pack
from paceline.links.streams import OFFER_BYTES

RUN = bytes(range(16))


@dataclass
class Chunk:
    """What one rank sends to another; as it should be, but for what a test changes."""

    kind: int = FIRST
    number: int = 0
    taken: int = 0
    run: bytes = RUN
    tensor: torch.Tensor = dataclasses.field(default_factory=lambda: torch.zeros(10))

    def prefix(self):
        has_header = self.kind in (FIRST, STREAMED)
        data = bytearray(FIRST_BYTES if has_header else PREFIX_BYTES)
        pack_prefix(data, self.kind, self.run, self.number, self.taken)
        if has_header:
            pack(memoryview(data), PREFIX_BYTES, self.tensor, tag=3, epoch=0, numbers=(7,))
        return data


def offer(arrivals, prefix, payload_bytes=40, consumed=0, most=0):
    return arrivals.check(memoryview(prefix), payload_bytes, consumed, least=0, most=most)


@pytest.fixture
def arrivals():
    return Arrivals(RUN)


def state(arrivals):
    return [getattr(arrivals, name) for name in Arrivals.__slots__]


def test_a_first_chunk_brings_the_header(arrivals):
    kind, header, taken = offer(arrivals, Chunk(taken=5).prefix(), most=9)
    assert kind == FIRST
    assert (header.shape, header.tag, header.numbers, taken) == ((10,), 3, (7,), 5)


def test_a_message_comes_in_several_chunks(arrivals):
    offer(arrivals, Chunk().prefix(), 12)
    assert offer(arrivals, Chunk(MORE, 1).prefix(), 24)[1] is None
    offer(arrivals, Chunk(TAKEN, 2).prefix(), 0)  # comes between them
    offer(arrivals, Chunk(MORE, 3).prefix(), 4)
    assert offer(arrivals, Chunk(FIRST, 4).prefix(), 40)[1].nbytes == 40


def test_an_empty_message_is_one_chunk(arrivals):
    empty = torch.zeros(0)
    offer(arrivals, Chunk(tensor=empty).prefix(), 0)
    assert offer(arrivals, Chunk(number=1, tensor=empty).prefix(), 0)[1].nbytes == 0


def test_even_empty_chunks_take_some_of_the_window():
    assert cost_bytes(0) == cost_bytes(1) > 0
    assert cost_bytes(CHUNK_BYTES) == CHUNK_BYTES < WINDOW_BYTES // 2


WRONG = {
    "a prefix of a wrong length": [(b"", 0), (bytes(PREFIX_BYTES - 1), 0), (bytes(FIRST_BYTES + 1), 40)],
    "no prefix of ours": [(bytes(PREFIX_BYTES), 0), (bytes(FIRST_BYTES), 40)],
    "a chunk of another run": [(Chunk(run=bytes(16)).prefix(), 40)],
    "a chunk of no known kind": [
        (Chunk(0).prefix(), 0),
        (Chunk(STREAMED + 1).prefix(), 0),
        (Chunk(OFFER).prefix() + bytes(HEADER_BYTES), OFFER_BYTES),
        (Chunk(MORE).prefix() + bytes(HEADER_BYTES), 40),
    ],
    "a chunk out of turn": [(Chunk(number=1).prefix(), 40), (Chunk(number=2**63).prefix(), 40)],
    "more consumed than was sent": [(Chunk(taken=101).prefix(), 40)],
    "a payload where none belongs": [
        (Chunk(TAKEN).prefix(), 4),
        (Chunk(OFFER).prefix(), OFFER_BYTES - 1),
        (Chunk(OFFER).prefix(), 0),
    ],
    "a payload by a stream that there is not": [(Chunk(STREAMED).prefix(), 0)],
    "the rest of no message": [(Chunk(MORE).prefix(), 4)],
    "a payload of a wrong length": [
        (Chunk().prefix(), 0),
        (Chunk().prefix(), 3),
        (Chunk().prefix(), 44),
        (Chunk(tensor=torch.zeros(0)).prefix(), 4),
    ],
    "no header of ours": [(Chunk().prefix()[:PREFIX_BYTES] + bytes(HEADER_BYTES), 40)],
    "a message too large to be one": [(Chunk(tensor=torch.zeros(2**40, device="meta")).prefix(), 40)],
}


@pytest.mark.parametrize(("reason", "prefix", "nbytes"), [(r, *w) for r, ws in WRONG.items() for w in ws])
def test_what_does_not_check_is_refused_and_changes_nothing(arrivals, reason, prefix, nbytes):
    before = state(arrivals)
    with pytest.raises(FrameError, match=f"^{reason}$"):
        offer(arrivals, prefix, nbytes, most=100)
    assert state(arrivals) == before
    offer(arrivals, Chunk().prefix())


def test_a_message_whose_payload_comes_by_a_stream_is_one_chunk(arrivals):
    offer(arrivals, Chunk(OFFER).prefix(), OFFER_BYTES)
    for number in (1, 2):
        kind, header, _ = offer(arrivals, Chunk(STREAMED, number).prefix(), 0)
        assert (kind, header.nbytes) == (STREAMED, 40)
    assert arrivals.arrived_bytes == 2 * cost_bytes(0)
    offer(arrivals, Chunk(FIRST, 3).prefix(), 40)


@pytest.mark.parametrize(
    ("reason", "chunk", "payload_bytes"),
    [
        ("a second stream", Chunk(OFFER, 2), OFFER_BYTES),
        ("a message within a message", Chunk(STREAMED, 2), 0),
    ],
)
def test_a_stream_out_of_place_is_refused(arrivals, reason, chunk, payload_bytes):
    offer(arrivals, Chunk(OFFER).prefix(), OFFER_BYTES)
    offer(arrivals, Chunk(FIRST, 1).prefix(), 8)
    before = state(arrivals)
    with pytest.raises(FrameError, match=f"^{reason}$"):
        offer(arrivals, chunk.prefix(), payload_bytes)
    assert state(arrivals) == before


@pytest.mark.parametrize(("tensor", "payload_bytes"), [(torch.zeros(10), 40), (torch.zeros(0), 0)])
def test_a_streamed_message_brings_no_payload_but_has_one(arrivals, tensor, payload_bytes):
    offer(arrivals, Chunk(OFFER).prefix(), OFFER_BYTES)
    with pytest.raises(FrameError, match="^a payload where none belongs$"):
        offer(arrivals, Chunk(STREAMED, 1, tensor=tensor).prefix(), payload_bytes)


def test_a_chunk_that_comes_again_is_refused(arrivals):
    offer(arrivals, Chunk().prefix())
    before = state(arrivals)
    with pytest.raises(FrameError, match="had come before"):
        offer(arrivals, Chunk().prefix())
    assert state(arrivals) == before


def test_a_message_within_a_message_is_refused(arrivals):
    offer(arrivals, Chunk().prefix(), 8)
    before = state(arrivals)
    with pytest.raises(FrameError, match="within a message"):
        offer(arrivals, Chunk(number=1).prefix(), 8)
    assert state(arrivals) == before
    offer(arrivals, Chunk(MORE, 1).prefix(), 32)


def test_no_more_may_come_than_there_is_room_for(arrivals):
    large = torch.zeros(2 * WINDOW_BYTES, dtype=torch.uint8)
    offer(arrivals, Chunk(tensor=large).prefix(), CHUNK_BYTES)
    chunks = WINDOW_BYTES // CHUNK_BYTES
    for number in range(1, chunks):
        offer(arrivals, Chunk(MORE, number).prefix(), CHUNK_BYTES)
    before = state(arrivals)
    with pytest.raises(FrameError, match="more than there is room for"):
        offer(arrivals, Chunk(MORE, chunks).prefix(), CHUNK_BYTES)
    assert state(arrivals) == before
    offer(arrivals, Chunk(MORE, chunks).prefix(), CHUNK_BYTES, consumed=CHUNK_BYTES)
