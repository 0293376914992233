"""Ports, with any kind of ways."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from links.ends import LINKS
from refusals import raised

from paceline.context import ANY
from paceline.errors import Cancelled, FrameError, MismatchError
from paceline.links.memory.rings import PIECE_BYTES, RING_BYTES

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
EDGES = sorted({64, 2**14, 2**16, PIECE_BYTES, RING_BYTES})  # a TLS record, a TCP way's buffer, …
SIZES = [0, 1, *(edge + more for edge in EDGES for more in (-1, 0, 1)), 3 * RING_BYTES + 17]
LARGE = 3 * RING_BYTES
COMBINES = {
    "copy": lambda own, other: other,
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


def pattern(count, dtype=torch.uint8, seed=0):
    whole = torch.randint(0, 100, (count,), generator=torch.Generator().manual_seed(seed))
    return whole.to(dtype)


@pytest.fixture(params=LINKS)
def of_ranks(request):
    """Returns a function that creates the ends of a number of ranks."""
    made = []

    def make(ranks):
        made.append(LINKS[request.param](ranks))
        return made[-1]

    yield make
    for ends in made:
        ends.close()


@pytest.fixture
def ends(of_ranks):
    return of_ranks(2)


def test_messages_of_any_size_arrive_whole(ends):
    for nbytes in SIZES:
        sent = pattern(nbytes)
        operation = ends.send(0, 1, sent, tag=3, numbers=(12, 0.25))
        message = ends.recv(1, 0, tag=3)
        assert torch.equal(message.tensor, sent)
        assert (message.source, message.tag, message.header) == (0, 3, (12, 0.25))
        assert operation.poll()


@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("early", [False, True], ids=["streamed", "kept"])
def test_every_dtype_is_combined_as_torch_does(ends, combine, early):
    for dtype in DTYPES:
        own, other = pattern(300_001, dtype), pattern(300_001, dtype, seed=1)
        expected = COMBINES[combine](own, other)
        ends.send(0, 1, other, tag=1)
        if early:  # it has been stored before it is requested
            ends.send(0, 1, torch.empty(0), tag=2)
            ends.recv(1, 0, tag=2)
        message = ends.recv(1, 0, own, combine, tag=1)
        assert message.tensor is own
        assert torch.equal(own, expected), dtype


@pytest.mark.parametrize("shape", [(), (7,), (2, 3), (2, 0, 3), (2, 3, 4, 5)], ids=str)
def test_a_message_keeps_its_shape(ends, shape):
    sent = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    ends.send(0, 1, sent)
    assert torch.equal(ends.recv(1, 0).tensor, sent)


def test_a_tensor_that_is_not_contiguous_can_be_sent(ends):
    sent = torch.arange(12.0).view(3, 4).t()
    ends.send(0, 1, sent)
    assert torch.equal(ends.recv(1, 0).tensor, sent)


def test_a_send_is_done_only_when_its_tensor_may_be_overwritten(ends):
    small, large = ends.send(0, 1, pattern(1000)), ends.send(0, 1, pattern(LARGE), tag=1)
    ends.poll_until(lambda: small.done, "the small one is sent")
    ends.settle()
    assert not large.done
    ends.recv(1, 0, tag=1)
    ends.poll_until(lambda: large.done, "the large one is sent")


@pytest.mark.parametrize("link", LINKS)
@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 63, 1000, 200_000]), st.integers(0, 2)), max_size=40))
def test_messages_of_one_tag_come_in_order_whatever_else_is_under_way(link, messages):
    ends = LINKS[link]()
    sent = {tag: [] for tag in range(3)}
    for number, (count, tag) in enumerate(messages):
        tensor = pattern(count, torch.int16, seed=number)
        sent[tag].append(tensor)
        ends.send(0, 1, tensor, tag=tag)
    for tag in (2, 0, 1):
        for tensor in sent[tag]:
            assert torch.equal(ends.recv(1, 0, tag=tag).tensor, tensor)
    ends.close()


def test_many_messages_pass_where_there_is_room_for_few(ends):
    for number in range(3000):
        ends.send(0, 1, torch.full((2001,), float(number)))
        assert ends.recv(1, 0).tensor[2000] == number
        ends.waiter.running.clear()


def test_messages_pass_both_ways_at_once(ends):
    there, back = pattern(LARGE), pattern(LARGE // 2 + 1, seed=1)
    ends.send(0, 1, there)
    ends.send(1, 0, back)
    first, second = ends.post(1, 0), ends.waiter.start(ends.post(0, 1))
    assert torch.equal(ends.finish(first).tensor, there)
    assert torch.equal(ends.finish(second).tensor, back)


def test_a_message_to_oneself_is_a_copy_and_counts_for_nothing(ends):
    tensor = torch.tensor([1.0])
    asked = ends.post(0, 0)
    assert ends.send(0, 0, tensor).done
    tensor.zero_()
    assert ends.finish(asked).tensor.item() == 1
    assert ends.sent == []


def test_a_message_that_comes_early_is_kept_until_it_is_asked_for(ends):
    ends.send(0, 1, torch.tensor([1.0]), tag=1)
    ends.send(0, 1, torch.tensor([2.0]), tag=2)
    assert ends.recv(1, 0, tag=2).tensor.item() == 2
    assert ends.recv(1, 0, tag=1).tensor.item() == 1


def test_a_kept_message_comes_before_a_later_one_of_the_same_tag(ends):
    ends.send(0, 1, torch.tensor([1.0]), tag=5)
    ends.send(0, 1, torch.empty(0), tag=6)
    ends.recv(1, 0, tag=6)  # stores the first message
    asked = ends.post(1, 0, tag=5)
    ends.send(0, 1, torch.tensor([2.0]), tag=5)
    ends.send(0, 1, torch.empty(0), tag=6)
    ends.recv(1, 0, tag=6)
    assert ends.finish(asked).tensor.item() == 1
    assert ends.recv(1, 0, tag=5).tensor.item() == 2


def test_a_message_asked_for_while_it_is_being_put_aside_is_handed_over(ends):
    large = pattern(LARGE)
    ends.send(0, 1, large, tag=5)
    ends.send(0, 1, torch.empty(0), tag=6)
    ends.settle()
    other = ends.post(1, 0, tag=6)
    other.poll()  # half of the large message is stored now
    asked, next_one = ends.post(1, 0, tag=5), ends.post(1, 0, tag=5)
    ends.finish(other)
    assert torch.equal(ends.finish(asked).tensor, large)
    assert not next_one.done


def test_operations_are_served_in_the_order_in_which_they_were_posted(ends):
    first, second = ends.post(1, 0), ends.post(1, 0)
    ends.send(0, 1, torch.tensor([1.0]))
    ends.send(0, 1, torch.tensor([2.0]))
    assert ends.finish(second).tensor.item() == 2
    assert ends.finish(first).tensor.item() == 1


def test_any_receives_from_whoever_has_sent(of_ranks):
    ends = of_ranks(4)
    ends.send(2, 0, torch.tensor([2.0]), tag=7)
    ends.send(3, 0, torch.tensor([3.0]), tag=8)
    message = ends.recv(0, ANY, tag=8)
    assert (message.source, message.tensor.item()) == (3, 3)
    assert ends.recv(0, ANY, tag=7).source == 2


def test_any_receives_a_large_message_whole_though_others_send_meanwhile(of_ranks):
    ends = of_ranks(3)
    large = pattern(LARGE)
    ends.send(2, 0, large)
    ends.settle()
    asked = ends.post(0, ANY)
    ends.poll_until(lambda: asked.poll() or asked.header is not None, "it has begun to come")
    ends.send(1, 0, pattern(10))
    message = ends.finish(asked)
    assert message.source == 2
    assert torch.equal(message.tensor, large)
    assert ends.recv(0, ANY).source == 1


def test_any_starves_nobody(of_ranks):
    ends = of_ranks(4)
    for rank in (1, 2, 3):
        for _ in range(4):
            ends.send(rank, 0, torch.empty(0))
    ends.settle()
    sources = [ends.recv(0, ANY).source for _ in range(12)]
    assert all(sorted(sources[i : i + 3]) == [1, 2, 3] for i in range(0, 12, 3))


def test_ranks_of_one_host_and_of_others_can_all_reach_each_other(of_ranks):
    ends = of_ranks(4)
    for source in range(4):
        for to in range(4):
            ends.send(source, to, torch.tensor([10 * source + to]))
    found = [[ends.recv(to, source).tensor.item() for to in range(4)] for source in range(4)]
    assert found == [[10 * source + to for to in range(4)] for source in range(4)]


# Failures


@pytest.mark.parametrize("count", [10, LARGE // 8])  # floats: below and above what there is room for
def test_a_message_that_does_not_fit_is_named_and_touches_nothing(ends, count):
    memory = torch.zeros(1000)
    ends.send(0, 1, torch.ones(count), tag=1)
    ends.send(0, 1, torch.tensor([5.0]), tag=2)
    operation = ends.post(1, 0, memory[:3], tag=1)
    with raised(MismatchError, sender=0, sent=f"float32[{count}]", receiver=1, expected="float32[3]"):
        ends.finish(operation)
    assert ends.recv(1, 0, tag=2).tensor.item() == 5
    assert not memory.any()


def test_a_message_of_another_dtype_does_not_fit(ends):
    ends.send(0, 1, torch.ones(3, dtype=torch.float64))
    with raised(MismatchError, sent="float64[3]", receiver=1, expected="float32[3]"):
        ends.recv(1, 0, torch.zeros(3))


def test_nothing_is_received_into_a_tensor_with_gaps(ends):
    ends.send(0, 1, torch.ones(3))
    with raised(FrameError, "contiguous"):
        ends.recv(1, 0, torch.zeros(3, 2)[:, 0])


def test_a_dtype_that_cannot_be_sent_is_refused(ends):
    with raised(FrameError, "torch.complex64"):
        ends.send(0, 1, torch.ones(3, dtype=torch.complex64))


def test_a_cancelled_receive_takes_no_message(ends):
    cancelled = ends.post(1, 0)
    cancelled.cancel()
    ends.send(0, 1, torch.tensor([1.0]))
    assert ends.recv(1, 0).tensor.item() == 1
    assert cancelled.done
    with pytest.raises(Cancelled):
        cancelled.take()


def test_a_receive_cancelled_half_way_drops_its_message_and_no_other(ends):
    into = torch.zeros(LARGE, dtype=torch.uint8)
    ends.send(0, 1, torch.ones_like(into))
    ends.send(0, 1, torch.tensor([7.0]))
    operation = ends.post(1, 0, into)
    ends.poll_until(lambda: operation.poll() or into.any(), "a part of it has come")
    operation.cancel()
    arrived = int(into.sum())
    assert 0 < arrived < len(into)
    assert ends.recv(1, 0).tensor.item() == 7
    assert into.sum() == arrived, "what comes after the cancel goes elsewhere"
    assert [operation.nbytes for operation in ends.sent] == [LARGE, 4]
    assert [operation.header.nbytes for operation in ends.received] == [4]


def test_a_send_cancelled_before_it_began_is_forgotten(ends):
    ends.send(0, 1, pattern(LARGE), tag=1)
    waiting = ends.send(0, 1, torch.tensor([1.0]), tag=2)
    waiting.cancel()
    ends.send(0, 1, torch.tensor([2.0]), tag=2)
    ends.recv(1, 0, tag=1)
    assert ends.recv(1, 0, tag=2).tensor.item() == 2
    with pytest.raises(Cancelled):
        waiting.take()


def test_a_send_cancelled_half_way_still_arrives_whole_and_its_tensor_may_be_overwritten(ends):
    tensor = pattern(LARGE)
    expected = tensor.clone()
    operation = ends.send(0, 1, tensor)
    ends.poll_until(lambda: operation.sent > 0, "some of it is on its way")
    operation.cancel()
    assert operation.done
    tensor.zero_()
    assert torch.equal(ends.recv(1, 0).tensor, expected)


def test_a_detached_send_arrives_whole_and_its_tensor_may_be_overwritten(ends):
    tensor = pattern(LARGE)
    expected = tensor.clone()
    operation = ends.send(0, 1, tensor)
    behind = ends.send(0, 1, tensor)
    operation.try_detach()
    behind.try_detach()
    tensor.zero_()
    assert operation.done
    for _ in range(2):
        assert torch.equal(ends.recv(1, 0).tensor, expected)
    assert [operation.nbytes for operation in ends.sent] == [LARGE, LARGE], "each is noted once"


def test_to_detach_a_send_that_has_ended_changes_nothing(ends):
    operation = ends.send(0, 1, pattern(1000))
    operation.try_detach()
    assert torch.equal(ends.recv(1, 0).tensor, pattern(1000))
    assert len(ends.sent) == 1


def test_an_operation_names_what_it_waits_for(of_ranks):
    ends = of_ranks(3)
    assert str(ends.post(1, 0)) == "receive from rank 0"
    assert ends.post(1, 0).awaited() == (0,)
    assert str(ends.post(1, ANY)) == "receive from any rank"
    assert ends.post(1, ANY).awaited() == (0, 2)
    sending = ends.send(1, 2, pattern(LARGE))
    assert (str(sending), sending.awaited()) == ("send to rank 2", (2,))
