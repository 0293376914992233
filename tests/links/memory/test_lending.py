"""Messages that are read in place, in memory that their sender lends."""

import random
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from links.ends import Ends, Waiter, shared
from processes import PATIENCE_S
from refusals import has, raised

from paceline.errors import FrameError, PeerLost
from paceline.links.frames import HEADER_BYTES, Place
from paceline.links.memory import rings
from paceline.links.memory.lending import LEAST_BYTES, Lending
from paceline.links.memory.ring_ways import RingWays
from paceline.links.memory.rings import RING_BYTES

LARGE = 3 * RING_BYTES


class LendingEnds(Ends):
    """Ends of ranks that can lend memory."""

    def open(self, ranks):
        made = {}

        def memory(name, nbytes):
            if name not in made:
                made[name] = shared(name, nbytes)
            return made[name]

        self.lending = [Lending(rank, memory) for rank in range(ranks)]

    def ways(self, rank, ranks):
        return RingWays(rank, ranks, self.memory, self.bells, self.lending[rank])

    def lent(self, count, rank=0, dtype=torch.uint8):
        """Numbers in memory that a rank lends."""
        return self.lending[rank].copy(torch.arange(count).to(dtype))


@pytest.fixture
def ends():
    return LendingEnds()


def ring_bytes(ends):
    """Return the bytes that the ring from rank 0 to rank 1 has carried."""
    return ends.memory.words(rings.CHANNEL_BYTES, 1)[0]


def test_a_lent_message_is_read_where_it_lies(ends):
    tensor = ends.lent(LARGE)
    sending = ends.send(0, 1, tensor, tag=3, numbers=(12, 0.25))
    message = ends.recv(1, 0, tag=3)
    assert torch.equal(message.tensor, tensor)
    assert (message.source, message.tag, message.header) == (0, 3, (12, 0.25))
    assert message.tensor.data_ptr() != tensor.data_ptr(), "what is received is the receiver's own"
    assert ring_bytes(ends) == HEADER_BYTES
    assert sending.poll()
    assert [operation.nbytes for operation in ends.sent] == [LARGE]


def test_a_send_of_lent_memory_is_done_when_it_has_been_read(ends):
    sending = ends.send(0, 1, ends.lent(LEAST_BYTES))
    assert not sending.poll()
    ends.recv(1, 0)
    assert sending.poll()


@pytest.mark.parametrize("combine", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32], ids=str)
def test_a_lent_message_is_combined_as_torch_does(ends, dtype, combine):
    own, other = torch.full((1000, 77), 50).to(dtype), ends.lent(77_000, dtype=dtype).view(1000, 77)
    expected = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}[combine](own, other)
    ends.send(0, 1, other)
    assert torch.equal(ends.recv(1, 0, own, combine).tensor, expected)
    assert ring_bytes(ends) == HEADER_BYTES


def test_a_part_of_lent_memory_is_lent_too(ends):
    first, second = ends.lent(LARGE), ends.lent(LARGE, dtype=torch.float32)
    for part in (first[17 : LARGE // 2], first[LARGE // 2 :], second[5:]):
        ends.send(0, 1, part)
        assert torch.equal(ends.recv(1, 0).tensor, part)
    assert ring_bytes(ends) == 3 * HEADER_BYTES


def test_small_messages_and_those_from_other_memory_go_through_the_ring(ends):
    for tensor in (ends.lent(LEAST_BYTES - 1), torch.ones(LEAST_BYTES, dtype=torch.uint8)):
        before = ring_bytes(ends)
        assert ends.send(0, 1, tensor).done
        assert torch.equal(ends.recv(1, 0).tensor, tensor)
        assert ring_bytes(ends) - before >= LEAST_BYTES


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1000, 200_000]), st.booleans(), st.integers(0, 2)), max_size=30)
)
def test_lent_messages_keep_their_place_among_the_others(messages):
    ends = LendingEnds()
    tensors = [
        (ends.lent(nbytes) if is_lent else torch.zeros(nbytes, dtype=torch.uint8)).fill_(number)
        for number, (nbytes, is_lent, _) in enumerate(messages)
    ]
    sent = [ends.send(0, 1, tensor, tag) for tensor, (_, _, tag) in zip(tensors, messages, strict=True)]
    for tag in range(3):
        for number, (nbytes, _, its_tag) in enumerate(messages):
            if its_tag == tag:
                assert torch.equal(
                    ends.recv(1, 0, tag=tag).tensor, torch.full((nbytes,), number, dtype=torch.uint8)
                )
    assert all(operation.poll() for operation in sent)


@pytest.mark.parametrize("how", ["cancel", "try_detach"])
def test_what_is_taken_back_before_it_is_read_arrives_as_it_was(ends, how):
    tensor = ends.lent(LARGE)
    expected = tensor.clone()
    sending = ends.send(0, 1, tensor)
    getattr(sending, how)()
    assert sending.done
    tensor.zero_()
    ends.send(0, 1, torch.tensor([7.0]))
    assert torch.equal(ends.recv(1, 0).tensor, expected)
    assert ends.recv(1, 0).tensor.item() == 7
    again = ends.send(0, 1, tensor)
    assert torch.equal(ends.recv(1, 0).tensor, tensor), "and what comes after it is lent again"
    assert again.poll()
    assert len(ends.sent) == 3


def test_several_messages_may_be_taken_back_before_the_first_is_read(ends):
    tensor = ends.lent(RING_BYTES // 8)
    for number in range(5):
        tensor.fill_(number)
        ends.send(0, 1, tensor).try_detach()
    tensor.fill_(99)
    last = ends.send(0, 1, tensor)
    assert [ends.recv(1, 0).tensor.unique().tolist() for _ in range(6)] == [[0], [1], [2], [3], [4], [99]]
    assert last.poll()
    assert len(ends.sent) == 6


def test_what_is_taken_back_while_it_is_read_is_read_to_its_end(ends):
    """The reader is another thread: a copy of memory lets others run meanwhile."""
    tensor, into, chance = ends.lent(LARGE), torch.empty(LARGE, dtype=torch.uint8), random.Random(1)
    met = 0
    for number in range(60):
        tensor.fill_(number)
        sending = ends.ports[0].send(Waiter(), 1, tensor, 0, 0)
        sending.poll()
        receiving = ends.ports[1].recv(Waiter(), 0, into, "copy", 0)
        reader = threading.Thread(target=_poll_until_done, args=(receiving,))
        reader.start()
        time.sleep(chance.uniform(0.0, 0.002))
        met += not sending.poll()
        while not sending.try_detach():
            time.sleep(1e-5)
        tensor.fill_(255)
        for rest in sending.waiter.running:
            _poll_until_done(rest)
        reader.join()
        assert receiving.done
        assert torch.equal(into, torch.full_like(into, number))
    assert met, "none was taken back before it had been read"


def _poll_until_done(operation):
    until_s = time.monotonic() + PATIENCE_S
    while not operation.poll():
        assert time.monotonic() < until_s, f"{operation} never ends"


def test_what_is_being_read_cannot_be_taken_back(ends, monkeypatch):
    tensor = ends.lent(LARGE)
    expected, sending = tensor.clone(), ends.send(0, 1, tensor)
    find, answers = ends.lending[1].find, []

    def find_slowly(source, header):
        answers.append(sending.try_detach())  # the reader has begun, and has read nothing yet
        return find(source, header)

    monkeypatch.setattr(ends.lending[1], "find", find_slowly)
    assert torch.equal(ends.recv(1, 0).tensor, expected)
    assert answers == [False]
    assert sending.try_detach()


def test_who_cancels_what_a_stopped_reader_holds_hears_who_it_is(ends, monkeypatch):
    monkeypatch.setattr("paceline.links.sending._PATIENCE_S", 0.01)
    sending = ends.send(0, 1, ends.lent(LARGE))

    def stop(source, header):
        with raised(PeerLost, rank=1, reason=has("0.01")):
            sending.cancel()
        raise RuntimeError("the reader stops here")

    monkeypatch.setattr(ends.lending[1], "find", stop)
    with raised(RuntimeError, "stops here"):
        ends.recv(1, 0)


def test_a_place_beyond_what_is_lent_is_refused(ends, monkeypatch):
    tensor = ends.lent(LARGE)
    monkeypatch.setattr(ends.lending[0], "place", lambda operation: Place(0, 1))
    ends.send(0, 1, tensor)
    with raised(FrameError, f"{LARGE} bytes at 1 of {LARGE}"):
        ends.recv(1, 0)


def test_who_shares_no_memory_is_lent_nothing(ends):
    ends.send(0, 1, ends.lent(LARGE))
    stranger = Ends()
    stranger.memory.view[:] = ends.memory.view
    with raised(FrameError, "rank 0"):
        stranger.recv(1, 0)
