import pytest
import torch
import zmq
from links.ends import EncryptedEnds

from paceline.links.chunks import WINDOW_BYTES
from paceline.links.credentials import KeyPair


@pytest.fixture
def ends():
    ends = EncryptedEnds()  # all of which goes in chunks
    yield ends
    ends.close()


def under_way_bytes(ends):
    way = ends.endpoints[0].way(1)
    return way._sent_bytes - way._taken_bytes


def test_no_more_than_the_window_is_sent_to_one_who_does_not_read(ends):
    sends = [ends.send(0, 1, torch.zeros(WINDOW_BYTES // 8)) for _ in range(5)]
    ends.poll_until(lambda: under_way_bytes(ends) > WINDOW_BYTES * 0.9, "the window is full")
    ends.settle()
    assert under_way_bytes(ends) <= WINDOW_BYTES
    assert [send.done for send in sends] == [True, True, False, False, False]


def test_empty_messages_do_not_pile_up_without_bound(ends):
    sends = [ends.send(0, 1, torch.zeros(0)) for _ in range(WINDOW_BYTES // 256 + 10)]
    assert sum(send.done for send in sends) == WINDOW_BYTES // 256


def test_what_is_read_makes_room(ends):
    sends = [ends.send(0, 1, torch.full((WINDOW_BYTES // 8,), float(n))) for n in range(5)]
    for number in range(5):
        assert ends.recv(1, 0).tensor[0] == number
    ends.poll_until(
        lambda: (ends.endpoints[0].drain(), under_way_bytes(ends) <= WINDOW_BYTES // 2)[1],
        "the sender is told what was read",
    )
    assert all(send.done for send in sends)


def test_a_message_that_nobody_has_asked_for_takes_up_room_until_it_is_read(ends):
    ends.send(0, 1, torch.zeros(WINDOW_BYTES // 8))
    ends.poll_until(lambda: under_way_bytes(ends) == WINDOW_BYTES // 2, "it is under way")
    ends.settle()
    assert under_way_bytes(ends) == WINDOW_BYTES // 2


def test_what_was_consumed_rides_on_messages_that_go_the_other_way(ends):
    for number in range(100):
        ends.send(0, 1, torch.full((WINDOW_BYTES // 64,), float(number)))
        assert ends.recv(1, 0).tensor[0] == number
        ends.send(1, 0, torch.tensor([float(number)]))
        assert ends.recv(0, 1).tensor.item() == number
    assert ends.endpoints[1].way(0)._number == 100, "no chunk that only tells what was consumed"
    assert under_way_bytes(ends) == 0


def test_a_send_to_one_that_does_not_let_us_in_waits(ends):
    ends.endpoints[0].gate.keys = KeyPair(*zmq.curve_keypair())
    # The first may be taken for a connection that is refused later.
    ends.poll_until(lambda: not ends.send(0, 1, torch.ones(3)).done, "a send waits")
