"""Properties of rings only. test_port.py has the others."""

import pytest
import torch
from links.ends import Ends

from paceline.errors import FrameError
from paceline.links.memory.rings import RING_BYTES


@pytest.fixture
def ends():
    return Ends()


def test_garbage_in_a_ring_is_refused(ends):
    ends.send(0, 1, torch.ones(3))
    header = bytes(ends.memory.view).index(b"LP")
    ends.memory.view[header] = 0
    with pytest.raises(FrameError):
        ends.recv(1, 0)


def test_a_message_may_end_and_begin_anywhere_in_the_ring(ends):
    for number in range(100):
        nbytes = RING_BYTES // 7 + number
        sent = torch.full((nbytes,), number, dtype=torch.uint8)
        ends.send(0, 1, sent)
        assert torch.equal(ends.recv(1, 0).tensor, sent)
        ends.waiter.running.clear()
