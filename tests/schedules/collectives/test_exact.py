from __future__ import annotations

import numpy as np
import pytest

from paceline.schedules.collectives.steps import Chunks, Recv, Schedule, Send
from paceline.schedules.collectives.timing import time_schedule

WHOLE = Chunks(0, 1)


def gather_in_rounds(order: list[int]) -> list[Schedule]:
    """Rank 0 receives from the others, one round each, in this order; then it tells rank 3."""
    receives = tuple((Recv(source, WHOLE),) for source in order)
    others = [Schedule(1, ((Send(0, WHOLE),),)) for _ in range(2)]
    last = Schedule(1, ((Recv(0, WHOLE),),))
    return [Schedule(1, (*receives, (Send(3, WHOLE),))), *others, last]


def finish(schedules: list[Schedule], arrivals: list[float]) -> list[float]:
    costs = {"length": 10, "itemsize": 1, "latency_s": 1.0, "seconds_per_byte": 1.0}
    return time_schedule(schedules, arrivals_s=np.array(arrivals), **costs).finish_s.tolist()


def test_a_message_that_is_not_awaited_yet_holds_the_port_all_the_same():
    # Rank 2's message comes at 1 and holds the in port to 11; rank 1's comes at 6, and is through at 21.
    assert finish(gather_in_rounds([1, 2]), [0.0, 5.0, 0.0, 0.0]) == [31.0, 15.0, 10.0, 32.0]


@pytest.mark.parametrize("order", [[1, 2], [2, 1]])
def test_messages_of_one_instant_are_taken_in_order_of_their_senders(order: list[int]):
    assert finish(gather_in_rounds(order), [0.0, 0.0, 0.0, 0.0])[0] == 31.0


def test_a_rank_that_comes_late_finds_its_messages_delivered():
    assert finish(gather_in_rounds([1, 2]), [50.0, 0.0, 0.0, 0.0]) == [60.0, 10.0, 10.0, 61.0]
