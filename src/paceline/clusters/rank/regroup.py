"""A rank of a run that loses members: it drops the incomplete step and continues in the next generation of members.

Strategies contain no code for this. A wait of a program raises `MembersChanged`, the program ends, and the role program
starts again with the net of the new members, numbered from 0.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from paceline.checkpoints import Shard
from paceline.clusters.base.members import MembersChanged, Membership
from paceline.clusters.base.news import drop_entries
from paceline.clusters.rank.restore import restore_learner
from paceline.clusters.rank.snapshot import learner_state
from paceline.context import Batch, Context, Handle
from paceline.files.tensor_files import parse_tensors, write_tensors

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank

T = TypeVar("T")

_STATE = 1  # message tag
_FACTS = "facts"


class Member:
    """The context of a program in a generation without some of the first ranks. Ranks are positions among members.

    It satisfies `paceline.context.Context`.
    """

    def __init__(self, rank: Rank, members: Sequence[int]) -> None:
        self._context = cast(Context, rank)
        self.rank = members.index(rank.rank)
        self.role = rank.role
        self.workers: Sequence[int] = range(len(members))
        self.servers: Sequence[int] = ()
        self.rng = rank.rng
        self.model: Any = rank.model
        self.net: Any = rank.net
        self.log = rank.log

    def rounds(self) -> AsyncIterator[int]:
        return self._context.rounds()

    def batches(self, own: Iterator[Batch] | None = None, *, endless: bool = False) -> AsyncIterator[Batch]:
        return self._context.batches(own, endless=endless)

    @property
    def batch_of(self) -> Callable[[int, int], Batch]:
        return self._context.batch_of

    @property
    def targets(self) -> Sequence[Any]:
        return self._context.targets

    def start(self, work: Awaitable[T]) -> Handle[T]:
        return self._context.start(work)

    def first(self, handles: Sequence[Handle[Any]]) -> Awaitable[Handle[Any]]:
        return self._context.first(handles)

    def now(self) -> float:
        return self._context.now()

    def sleep(self, seconds: float) -> Awaitable[None]:
        return self._context.sleep(seconds)


class StepStart:
    """Buffers of the model and state of the strategy at the start of a step, to repeat the step."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._states: dict[str, Tensor] = {}

    def keep(self, rank: Rank) -> None:
        self._buffers = [each.clone() for each in rank.model.buffers]
        self._states = {name: each.clone() for name, each in rank.model.states.items()}

    def restore(self, rank: Rank) -> None:
        for present, kept in zip(rank.model.buffers, self._buffers, strict=False):
            present.copy_(kept)
        for name, kept in self._states.items():
            rank.model.states[name].copy_(kept)


async def live_in_generations(rank: Rank) -> Any:
    """Run the program until all members have completed the run. It starts again whenever a member is lost."""
    result, meets, has_ended = None, False, False
    context: Rank | Member = rank
    while True:
        try:
            if meets:
                membership = await rank.meet_members(rank.complete, ended=has_ended)
                if membership is None:
                    return result
                context = await _join(rank, membership)
            has_ended = False
            result = await rank.run_program(context)
            rank.settle()
            has_ended = True
        except MembersChanged:
            pass
        meets = True


async def _join(rank: Rank, membership: Membership) -> Member:
    """Begin a generation of members. Return the context of its program."""
    first, is_behind = membership.first, rank.rank in membership.behind
    assert rank.step_start is not None
    if not is_behind and rank.step >= first:
        rank.step_start.restore(rank)
    _drop_incomplete(rank, first)
    rank.position = membership.members.index(rank.rank)
    rank.workers = membership.members
    rank.is_reporter = rank.rank == membership.reporter
    rank.data.divide(len(membership.members))
    rank.generation = membership.generation
    rank.begun = first
    rank.rewire(membership)
    rank.model.begin_generation()
    rank.log.begin_generation()
    await _copy_state(rank, membership)
    rank.complete = first
    if rank.is_reporter:
        rank.log.take_over(membership.recorded, first)
    return Member(rank, membership.members)


def _drop_incomplete(rank: Rank, first: int) -> None:
    """Drop the records of a rank from step `first` on. Spans remain: the time was spent."""
    outcome = rank.outcome
    drop_entries(outcome, first)
    rank.tell_dropped(first)
    del outcome.bytes_at[first:]
    outcome.bytes_at += [outcome.bytes_sent] * (first - len(outcome.bytes_at))


async def _copy_state(rank: Rank, membership: Membership) -> None:
    """Send the state of the last complete step to members that did not complete it, or receive it."""
    own, source = rank.rank, membership.source
    if own == source:
        for other in membership.behind:
            await rank.net.send(membership.members.index(other), _encode(rank), tag=_STATE)
    elif own in membership.behind:
        message = await rank.net.recv(membership.members.index(source), tag=_STATE)
        _decode(rank, message.tensor)


def _encode(rank: Rank) -> Tensor:
    model = rank.model
    if model.parameters.is_meta:
        nbytes = sum(each.nbytes for each in (model.parameters, *model.moments))
        return torch.empty(nbytes, dtype=torch.uint8, device="meta")
    tensors, facts = learner_state(model, lean=False)
    tensors = {
        name: each for name, each in tensors.items() if not name.startswith("state/")
    }  # each has its own
    out = io.BytesIO()
    write_tensors(out, tensors, {_FACTS: json.dumps(facts)})
    return torch.frombuffer(bytearray(out.getbuffer()), dtype=torch.uint8)


def _decode(rank: Rank, content: Tensor) -> None:
    if content.is_meta:
        return
    found = parse_tensors(bytearray(content.numpy().tobytes()))
    part = {**json.loads(found.notes[_FACTS]), "drawn": rank.drawn}
    rank.model.replica.updates.forget()
    shard = Shard(rank=rank.rank, tensors=found.tensors, facts={"parts": [part]})
    restore_learner(rank, found.tensors, {}, part, [shard])
