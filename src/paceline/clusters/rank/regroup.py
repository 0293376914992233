"""A rank of a run that loses or gains members: it drops incomplete steps and continues in the next generation.

Strategies contain no code for this. A wait of a program raises `MembersChanged`, the program ends, and the role program
starts again with the net of the new members, numbered from 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.clusters.base.members import Arrival, MembersChanged, Membership
from paceline.clusters.base.news import drop_entries
from paceline.clusters.rank.lifecycle import end_program
from paceline.clusters.rank.member import Member

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank


async def live_in_generations(rank: Rank) -> Any:
    """Run the program until all members have completed the run. It starts again whenever a member is lost or joins."""
    result, meets, has_ended = None, rank.joins, False
    context: Rank | Member = rank
    assert rank.recovery is not None
    if not rank.joins:
        rank.recovery.at_program_start(rank)
    while True:
        try:
            if meets:
                membership = await rank.meet_members(_arrival(rank, ended=has_ended))
                if membership is None:
                    return result
                has_ended = False
                context = await _join(rank, membership)
            result = await _run_programs(rank, context)
            has_ended = True
        except MembersChanged:
            pass
        meets = True


async def _run_programs(rank: Rank, context: Rank | Member) -> Any:
    """Run the program to the end of the run.

    It ends and starts again at checkpoints, and now and then if each worker has a model of its own.
    """
    result = None
    while rank.begun < rank.last_step:
        result = await rank.run_program(context)
        if end_program(rank):
            break
        rank.begin_next_program(rank.generation_end)
        context = rank if rank.members is None else Member(rank, rank.members)
    return result


def _arrival(rank: Rank, *, ended: bool) -> Arrival:
    assert rank.recovery is not None
    at_own_pace = next((each for each in (rank, *rank.twins) if each.own_pace), rank)
    return Arrival(
        points=() if rank.joins else rank.recovery.points(rank),
        step=at_own_pace.step,
        drawn=_next_batch(rank),
        own_pace=at_own_pace.own_pace,
        ended=ended,
    )


def _next_batch(rank: Rank) -> int:
    """Return the batch with which the worker on this rank continues. 0 if there is no worker."""
    if rank.role != "worker" and not rank.twins:
        return 0
    worker = (rank, *rank.twins)[-1]
    return worker.step if worker.own_pace else worker.drawn


async def _join(rank: Rank, membership: Membership) -> Member:
    """Begin a generation of members. Return the context of its program."""
    first, members = membership.first, membership.members
    assert rank.recovery is not None
    if rank.rank not in membership.behind:
        rank.recovery.go_back(rank, first)
    _drop_incomplete(rank, first)
    rank.is_reporter = rank.rank == membership.reporter
    for each in (rank, *rank.twins):
        each.members = members
        each.position = members.index(rank.rank)
        each.workers = [member for member in members if member < rank.job.workers]
        each.data.divide(len(each.workers))
        each.generation, each.program_number = membership.generation, 0
        each.drawn = membership.drawn
        each.model.begin_generation()
    if rank.checkpoint_writer is not None:
        rank.checkpoint_writer.begin_generation(membership)
    rank.rewire(membership)
    rank.log.begin_generation()
    rank.log.evaluations.close_board()
    await rank.recovery.copy_state(rank, membership)
    rank.start_at(first)
    rank.complete = first
    rank.joins = False
    if rank.is_reporter:
        rank.log.take_over(membership.recorded, first)
    return Member(rank, members)


def _drop_incomplete(rank: Rank, first: int) -> None:
    """Drop the records of a rank from step `first` on. Spans remain: the time was spent."""
    outcome = rank.outcome
    drop_entries(outcome, first)
    rank.tell_dropped(first)
    del outcome.bytes_at[first:]
    outcome.bytes_at += [outcome.bytes_sent] * (first - len(outcome.bytes_at))
