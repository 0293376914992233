"""State of a rank to which it can go back when a step is repeated, and the messages that copy it to another rank."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from paceline.checkpoints import Shard
from paceline.clusters.base.members import Membership
from paceline.clusters.rank.restore import CheckpointFiles, restore_learner, restore_shards
from paceline.clusters.rank.snapshot import learner_state
from paceline.errors import ConfigurationError
from paceline.files.tensor_files import parse_tensors, write_tensors
from paceline.model.memory import Ledger

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank

_STATE = 1  # message tag
_FACTS = "facts"


class Recovery(Protocol):
    """What a rank keeps, to repeat steps."""

    def at_step(self, rank: Rank) -> None:
        """Keep what is needed at the start of a step."""
        ...

    def at_program_start(self, rank: Rank) -> None:
        """Keep what is needed when the program has ended and starts again."""
        ...

    def points(self, rank: Rank) -> tuple[int, ...]:
        """Return the steps whose state this rank can begin with, in order."""
        ...

    def go_back(self, rank: Rank, first: int) -> None:
        """Restore the state of step `first`, which is one of the points."""
        ...

    async def copy_state(self, rank: Rank, membership: Membership) -> None:
        """Send the state to members that do not have it, or receive it."""
        ...


def recovery_of(state_at: str) -> Recovery:
    """Return what a rank keeps if the state of the run is at these ranks: see `Job.state_at`."""
    if state_at == "shards":
        return SavedState()
    if state_at == "workers":
        return StateCopies()
    return ServedStepStart() if state_at == "server" else StepStart()


class StepStart:
    """Where one update makes a step complete: the model's buffers and the strategy's state at the start of a step.

    Parameters change only in an update, which is not interrupted.
    """

    def __init__(self) -> None:
        self._step = -1
        self._buffers: list[Tensor] = []
        self._states: dict[str, Tensor] = {}

    def at_step(self, rank: Rank) -> None:
        self._step = rank.step
        self._buffers = [each.clone() for each in rank.model.buffers]
        self._states = {name: each.clone() for name, each in rank.model.states.items()}

    def at_program_start(self, rank: Rank) -> None:
        pass

    def points(self, rank: Rank) -> tuple[int, ...]:
        return (rank.complete,)

    def go_back(self, rank: Rank, first: int) -> None:
        if self._step != first:  # the step before is complete, or was copied
            return
        for present, kept in zip(rank.model.buffers, self._buffers, strict=False):
            present.copy_(kept)
        for name, kept in self._states.items():
            rank.model.states[name].copy_(kept)
        # If another member is lost before the step begins again, nothing has changed. States may have other sizes then.
        self._step = -1

    async def copy_state(self, rank: Rank, membership: Membership) -> None:
        await _copy_all(rank, membership)


class ServedStepStart(StepStart):
    """The same where a server has the state of the run. Workers get its parameters and buffers."""

    async def copy_state(self, rank: Rank, membership: Membership) -> None:
        places, own = membership.members, rank.model
        if rank.rank != membership.source:
            for tensor in (own.parameters, *own.buffers):
                await rank.net.recv(places.index(membership.source), tensor, tag=_STATE)
            return
        for twin in rank.twins:  # the worker on this rank
            twin.model.parameters.copy_(own.parameters)
            for kept, buffer in zip(twin.model.buffers, own.buffers, strict=True):
                kept.copy_(buffer)
        for other in membership.behind:
            for tensor in (own.parameters, *own.buffers):
                await rank.net.send(places.index(other), tensor, tag=_STATE)


class StateCopies:
    """Where each worker has a model of its own: copies of its whole state from the two last starts of the program.

    No worker passes two of these starts while another one has passed none. So all can go back to a common one.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[dict[str, Tensor], dict[str, Any]]] = {}

    def at_step(self, rank: Rank) -> None:
        pass

    def at_program_start(self, rank: Rank) -> None:
        if rank.begun in self._copies:
            return
        if not self._copies:
            _refuse_plateaus(rank)
        meta = rank.model.parameters.is_meta
        tensors, facts = ({}, {}) if meta else learner_state(rank.model, lean=False, with_unused=True)
        copies = {name: each.clone() for name, each in tensors.items()}
        self._copies[rank.begun] = copies, facts
        while len(self._copies) > 2:
            del self._copies[min(self._copies)]

    def points(self, rank: Rank) -> tuple[int, ...]:
        return tuple(sorted(self._copies))

    def go_back(self, rank: Rank, first: int) -> None:
        self._copies = {step: copy for step, copy in self._copies.items() if step <= first}
        _restore(rank, *self._copies[first])

    async def copy_state(self, rank: Rank, membership: Membership) -> None:
        await _copy_all(rank, membership)


def _refuse_plateaus(rank: Rank) -> None:
    """Refuse a schedule that depends on the metric: that of an earlier step is not known any more."""
    if rank.model.replica.updates.wait_for_metric:
        bound = "must not need a metric with min_workers where each worker has a model of its own"
        remedy = "choose a schedule that goes by updates, or a strategy such as all-reduce"
        raise ConfigurationError("schedule", bound, "ReduceLROnPlateau", remedy)


class SavedState:
    """Where each rank has a part of the state that no other rank has: all go back to the newest checkpoint."""

    def at_step(self, rank: Rank) -> None:
        pass

    def at_program_start(self, rank: Rank) -> None:
        pass

    def points(self, rank: Rank) -> tuple[int, ...]:
        return (rank.begun, rank.complete)

    def go_back(self, rank: Rank, first: int) -> None:
        before = rank.ledger.peak
        rank.ledger = Ledger()
        rank.rebuild_model()
        rank.ledger.take_over(before)
        plan = rank.job.checkpointing
        assert plan is not None
        if first:
            restore_shards(rank, CheckpointFiles(rank.job, plan.store.place_of(first)))

    async def copy_state(self, rank: Rank, membership: Membership) -> None:
        pass


async def _copy_all(rank: Rank, membership: Membership) -> None:
    """Send the whole state to members that are behind, or receive it."""
    own, source, places = rank.rank, membership.source, membership.members
    if own == source:
        for other in membership.behind:
            await rank.net.send(places.index(other), _encode(rank), tag=_STATE)
    elif own in membership.behind:
        message = await rank.net.recv(places.index(source), tag=_STATE)
        _decode(rank, message.tensor)


def _encode(rank: Rank) -> Tensor:
    model = rank.model
    if model.parameters.is_meta:
        nbytes = sum(each.nbytes for each in (model.parameters, *model.moments))
        return torch.empty(nbytes, dtype=torch.uint8, device="meta")
    tensors, facts = learner_state(model, lean=False, with_unused=True)
    facts["metric"] = model.resumed_metric
    out = io.BytesIO()
    write_tensors(out, tensors, {_FACTS: json.dumps(facts)})
    return torch.frombuffer(bytearray(out.getbuffer()), dtype=torch.uint8)


def _decode(rank: Rank, content: Tensor) -> None:
    if content.is_meta:
        return
    found = parse_tensors(bytearray(content.numpy().tobytes()))
    facts = json.loads(found.notes[_FACTS])
    _restore(rank, found.tensors, facts)
    rank.model.resumed_metric = facts["metric"]


def _restore(rank: Rank, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    if rank.model.parameters.is_meta:
        return
    rank.model.replica.updates.forget()
    rank.model.states.clear()  # some may be newer than the state to go back to
    part = {**facts, "drawn": rank.drawn}
    restore_learner(
        rank, tensors, {}, part, [Shard(rank=rank.rank, tensors=tensors, facts={"parts": [part]})]
    )
