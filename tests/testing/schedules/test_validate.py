from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refusals import has, raised, unknown

from paceline.errors import PacelineError
from paceline.schedules.collectives import ALL_REDUCE, COLLECTIVES
from paceline.schedules.collectives.steps import (
    Accumulate,
    Buffer,
    Chunks,
    Copy,
    Recv,
    Reduce,
    Round,
    Schedule,
    Send,
)
from paceline.testing.schedules.validate import ScheduleError, validate

WHOLE = Chunks(0, 1)
OLD = Chunks(0, 1, Buffer.SCRATCH)
EVERY = [(goal, name) for goal, table in COLLECTIVES.items() for name in table]


def group(goal: str, name: str, size: int) -> list[Schedule]:
    return [COLLECTIVES[goal][name](rank, size) for rank in range(size)]


def ranks(*rounds: list[Round], chunks: int = 1) -> list[Schedule]:
    return [Schedule(chunks, tuple(each)) for each in rounds]


def edited(schedule: Schedule, number: int, index: int, *steps) -> Schedule:
    """The schedule with one step replaced by others, or by none."""
    steps_now = schedule.rounds[number]
    changed = (*steps_now[:index], *steps, *steps_now[index + 1 :])
    return replace(schedule, rounds=(*schedule.rounds[:number], changed, *schedule.rounds[number + 1 :]))


@st.composite
def one_step(draw, kinds: tuple[type, ...]):
    """A group, and the place of one step of these kinds in it."""
    goal, name = draw(st.sampled_from(EVERY))
    schedules = group(goal, name, draw(st.integers(2, 9)))
    places = [
        (rank, number, index)
        for rank, schedule in enumerate(schedules)
        for number, steps in enumerate(schedule.rounds)
        for index, step in enumerate(steps)
        if isinstance(step, kinds)
    ]
    assume(places)
    return goal, schedules, draw(st.sampled_from(places))


@settings(max_examples=150, deadline=None)
@given(one_step((Send, Recv, Reduce)))
def test_a_schedule_that_lacks_one_message_step_is_refused(case):
    goal, schedules, (rank, number, index) = case
    schedules[rank] = edited(schedules[rank], number, index)
    with pytest.raises(ScheduleError):
        validate(schedules, goal)


@settings(max_examples=150, deadline=None)
@given(one_step((Send, Recv, Reduce, Copy, Accumulate)), st.integers(1, 20))
def test_a_step_on_another_chunk_is_refused(case, distance: int):
    goal, schedules, (rank, number, index) = case
    step = schedules[rank].rounds[number][index]
    field = "target" if isinstance(step, Copy | Accumulate) else "chunks"
    old = getattr(step, field)
    assume(old.start < old.stop)
    limit = schedules[rank].chunks * (schedules[rank].scratch if old.buffer is Buffer.SCRATCH else 1)
    start = (old.start + distance) % limit
    moved = Chunks(start, start + old.stop - old.start, old.buffer)
    assume(moved != old)
    schedules[rank] = edited(schedules[rank], number, index, replace(step, **{field: moved}))
    with pytest.raises(ScheduleError):
        validate(schedules, goal)


@settings(max_examples=100, deadline=None)
@given(one_step((Recv, Reduce)))
def test_adding_where_one_should_overwrite_or_the_reverse_is_refused(case):
    goal, schedules, (rank, number, index) = case
    assume(goal != "barrier")  # its messages are empty
    step = schedules[rank].rounds[number][index]
    other = Reduce if isinstance(step, Recv) else Recv
    schedules[rank] = edited(schedules[rank], number, index, other(step.source, step.chunks))
    with pytest.raises(ScheduleError):
        validate(schedules, goal)


@settings(max_examples=100, deadline=None)
@given(one_step((Send, Recv, Reduce)), st.integers(1, 8))
def test_a_message_from_or_to_another_rank_is_refused(case, distance: int):
    goal, schedules, (rank, number, index) = case
    assume(distance % len(schedules))
    step = schedules[rank].rounds[number][index]
    field = "to" if isinstance(step, Send) else "source"
    peer = (getattr(step, field) + distance) % len(schedules)
    schedules[rank] = edited(schedules[rank], number, index, replace(step, **{field: peer}))
    with pytest.raises(ScheduleError):
        validate(schedules, goal)


@pytest.mark.parametrize("name", ALL_REDUCE)
def test_an_all_reduce_done_twice_counts_everybody_twice(name: str):
    twice = [replace(each, rounds=each.rounds * 2) for each in group("all-reduce", name, 4)]
    with raised(ScheduleError, fault="sum"):
        validate(twice, "all-reduce")


def test_a_message_that_nobody_takes_is_named():
    schedules = ranks([(Send(1, WHOLE),)], [])
    with raised(
        ScheduleError, rank=0, round=0, step=Send(1, WHOLE), fault="unmatched", problem=has("rank 1")
    ):
        validate(schedules, "barrier")


def test_a_message_that_nobody_sends_is_named():
    schedules = ranks([], [(), (Reduce(0, WHOLE),)])
    with raised(
        ScheduleError, rank=1, round=1, step=Reduce(0, WHOLE), fault="unmatched", problem=has("rank 0")
    ):
        validate(schedules, "barrier")


@pytest.mark.parametrize("peer", [-1, 2])
def test_a_rank_outside_the_group_is_refused(peer: int):
    with raised(ScheduleError, fault="peer", problem=has(f"rank {peer}", 2)):
        validate(ranks([(Send(peer, WHOLE),)], []), "barrier")


def test_a_message_to_oneself_is_refused():
    with raised(ScheduleError, fault="peer"):
        validate(ranks([(Send(0, WHOLE), Recv(0, OLD))]), "barrier")


def test_two_ranks_that_both_send_before_they_receive_deadlock():
    schedules = ranks(
        [(Send(1, WHOLE),), (Recv(1, WHOLE),)],
        [(Send(0, WHOLE),), (Recv(0, WHOLE),)],
    )
    with raised(ScheduleError, fault="deadlock", problem=has("rank 0", "rank 1")):
        validate(schedules, "barrier")


def test_a_cycle_of_ranks_that_wait_for_one_another_is_followed_to_its_end():
    size = 5
    schedules = [
        Schedule(1, ((Recv((rank - 1) % size, OLD),), (Send((rank + 1) % size, WHOLE),)))
        for rank in range(size)
    ]
    with raised(ScheduleError, fault="deadlock") as caught:
        validate(schedules, "barrier")
    assert all(f"rank {rank} in round 0" in str(caught.value) for rank in range(size))


def test_the_same_exchange_in_one_round_does_not_deadlock():
    exchange = [
        [(Send(1 - rank, WHOLE), Recv(1 - rank, OLD)), (Accumulate(OLD, WHOLE),)] for rank in range(2)
    ]
    validate(ranks(*exchange), "all-reduce")


def test_reducing_into_what_is_being_sent_is_a_hazard():
    schedules = ranks(*([(Send(1 - rank, WHOLE), Reduce(1 - rank, WHOLE))] for rank in range(2)))
    with raised(ScheduleError, rank=0, round=0, step_index=1, fault="hazard", problem=has("step 0")):
        validate(schedules, "all-reduce")


def test_adding_in_order_of_arrival_gives_ranks_different_bits():
    def rounds(rank: int) -> list[Round]:
        before, after = (rank - 1) % 3, (rank + 1) % 3
        return [
            (Copy(WHOLE, OLD),),
            (Send(after, OLD), Reduce(before, WHOLE)),
            (Send(before, OLD), Reduce(after, WHOLE)),
        ]

    with raised(ScheduleError, rank=1, fault="order", problem=has("rank 0")):
        validate(ranks(*map(rounds, range(3))), "all-reduce")


def test_the_sum_of_two_is_the_same_either_way_round():
    def rounds(rank: int) -> list[Round]:
        return [(Copy(WHOLE, OLD),), (Send(1 - rank, OLD), Reduce(1 - rank, WHOLE))]

    validate(ranks(*map(rounds, range(2))), "all-reduce")


def test_adding_different_chunks_is_refused():
    first, second = Chunks(0, 1), Chunks(1, 2)
    crossed = ranks([(Send(1, first),)], [(Copy(second, first),), (Reduce(0, first),)], chunks=2)
    with raised(ScheduleError, rank=1, round=0, step_index=0, fault="chunks"):
        validate(crossed, "barrier")
    mixed = ranks([(Send(1, first),)], [(Reduce(0, second),)], chunks=2)
    with raised(ScheduleError, fault="chunks"):
        validate(mixed, "barrier")


def test_scratch_that_was_never_written_may_not_be_read():
    with raised(ScheduleError, fault="unwritten"):
        validate(ranks([(Copy(OLD, WHOLE),)]), "barrier")


def test_a_number_of_chunks_at_the_two_ends_that_differs_is_refused():
    schedules = ranks([(Send(1, Chunks(0, 2)),)], [(Recv(0, Chunks(0, 1)),)], chunks=2)
    with raised(ScheduleError, rank=1, round=0, step_index=0, fault="chunks"):
        validate(schedules, "broadcast")


def test_ranks_that_cut_the_data_differently_are_refused():
    with raised(ScheduleError, rank=1, fault="chunks", problem=has(3, 2)):
        validate([Schedule(2, ()), Schedule(3, ())], "barrier")


@pytest.mark.parametrize("goal", ["all-gather", "reduce-scatter", "scatter", "gather", "all-to-all"])
def test_where_chunks_belong_to_ranks_there_must_be_one_for_each(goal: str):
    with raised(ScheduleError, fault="chunks", problem=has(1, 2)):
        validate([Schedule(1, ()), Schedule(1, ())], goal)


@pytest.mark.parametrize(("goal", "name"), EVERY)
def test_doing_nothing_reaches_no_goal(goal: str, name: str):
    idle = [replace(each, rounds=()) for each in group(goal, name, 3)]
    with raised(ScheduleError, fault="goal"):
        validate(idle, goal)


def test_an_error_names_what_is_held_and_what_is_demanded():
    with raised(ScheduleError, rank=0, fault="goal", problem=has("chunk 0", "[0]", "all-reduce", "[0, 1]")):
        validate([Schedule(1, ()), Schedule(1, ())], "all-reduce")


def test_an_unknown_goal_is_refused_with_the_nearest():
    with unknown("goal", "allreduce", nearest="all-reduce"):
        validate([Schedule(1, ())], "allreduce")


def test_a_schedule_error_is_one_of_ours():
    assert issubclass(ScheduleError, PacelineError)
