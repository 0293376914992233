from __future__ import annotations

from refusals import raised

from paceline.schedules.collectives.align import waves
from paceline.schedules.collectives.matching import match
from paceline.schedules.collectives.steps import Buffer, Chunks, Recv, Schedule, Send
from paceline.testing.schedules.validate import ScheduleError, validate

WHOLE = Chunks(0, 1)
OLD = Chunks(0, 1, Buffer.SCRATCH)


def test_a_chain_of_ranks_takes_a_round_for_each_link():
    chain = [Schedule(1, ((Send(1, WHOLE),),))]
    chain += [Schedule(1, ((Recv(rank - 1, WHOLE),), (Send(rank + 1, WHOLE),))) for rank in (1, 2)]
    chain += [Schedule(1, ((Recv(2, WHOLE),),))]
    assert [[message.sender.rank for message in wave] for wave in waves(match(chain))] == [[0], [1], [2]]


def test_exchanges_that_do_not_wait_for_each_other_share_a_round():
    pairs = [
        Schedule(1, ((Send(1, WHOLE),),)),
        Schedule(1, ((Recv(0, WHOLE),),)),
        Schedule(1, ((), (), (Send(3, WHOLE),))),
        Schedule(1, ((), (Recv(2, WHOLE),))),
    ]
    assert [len(wave) for wave in waves(match(pairs))] == [2]


def test_right_schedules_without_common_rounds_are_refused():
    # Rank 0 sends to both in one round; rank 2 wants rank 1's message first, which rank 1 sends afterwards.
    schedules = [
        Schedule(1, ((Send(1, WHOLE), Send(2, WHOLE)),)),
        Schedule(1, ((Recv(0, WHOLE),), (Send(2, WHOLE),))),
        Schedule(1, ((Recv(1, OLD),), (Recv(0, WHOLE),))),
    ]
    validate(schedules, "broadcast")
    with raised(ScheduleError, fault="deadlock"):
        waves(match(schedules))
