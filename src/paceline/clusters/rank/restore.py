"""A rank as it was at a checkpoint; or, where the run goes on with other ranks, one that takes part from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoints import Checkpoint, Shard
from paceline.clusters.job import Job
from paceline.clusters.outcome import Outcome
from paceline.clusters.rank.notes import Notes, put_together
from paceline.clusters.rank.rank import Rank
from paceline.clusters.rank.snapshot import LOST, twin_prefix
from paceline.replica.keeping import KeptUpdates, load_module

__all__ = ["Shards", "restore"]


class Shards:
    """The files of a checkpoint, each read once. Ranks of one process share it."""

    def __init__(self, job: Job) -> None:
        assert job.keeping is not None
        assert job.keeping.resumed is not None
        self._checkpoint = Checkpoint.open(job.keeping.resumed)
        self._read: dict[int, Shard] = {}
        facts = self._checkpoint.facts
        self.reporter = int(facts["reporter"])
        self.fit = facts["strategy"] == job.keeping.facts["strategy"] and facts["roles"] == list(job.roles)
        """Whether each rank of the run has one of its own."""

    def of(self, rank: int) -> Shard:
        if rank not in self._read:
            self._read[rank] = self._checkpoint.shard(rank)
        return self._read[rank]

    def all(self) -> list[Shard]:
        """But for those of lost ranks."""
        shards = [self.of(rank) for rank in range(self._checkpoint.ranks)]
        return [shard for shard in shards if LOST not in shard.facts]


def restore(rank: Rank, shards: Shards) -> None:
    """Before the rank's program begins."""
    main = shards.of(shards.reporter)
    own = shards.of(rank.rank) if shards.fit else None
    if own is None or LOST in own.facts:
        _join(rank, main, shards)
    else:
        _go_on(rank, own, main)


def _go_on(rank: Rank, own: Shard, main: Shard) -> None:
    facts = own.facts
    Notes().restore(rank.outcome, own.tensors, facts["written"])
    rank.ledger.take_over(rank.outcome.memory)
    rank.log.restore(own.tensors, facts["log"])
    rank.resumed_s = facts["seconds"]
    chance = facts["chance"]
    if chance["program"] is not None:
        rank.rng.bit_generator.state = chance["program"]
    rank.delay_rng.bit_generator.state = chance["delay"]
    if rank.price is not None:
        rank.price.put_back(chance["unused"])
    _fill(
        rank, own.tensors, main.tensors, facts["parts"][0], [own if facts["parts"][0]["optimizer"] else main]
    )
    for number, part in enumerate(facts["parts"][1:], start=1):
        twins = _with_prefix(own.tensors, twin_prefix(number))
        rank.restored_twins.append(partial(_fill, own=twins, main=main.tensors, part=part, remembered=[]))


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _join(rank: Rank, main: Shard, shards: Shards) -> None:
    """This rank was not there, or was another: it begins with what the reporter held."""
    everybody = shards.all()
    rank.resumed_s = main.facts["seconds"]
    part = {"drawn": _drawn(everybody), "updates": main.facts["parts"][0]["updates"]}
    tensors: dict[str, Tensor] = {}
    if rank.is_reporter and not shards.fit:
        outcomes = [_outcome(shard) for shard in everybody]
        place = [shard.rank for shard in everybody].index(main.rank)
        _take_over(rank.outcome, put_together(outcomes, place))
        rank.log.restore(main.tensors, main.facts["log"])
        tensors = {name: tensor for name, tensor in main.tensors.items() if name.startswith("state/")}
        tensors["state/samples"] = torch.tensor([sum(count for _, _, count in rank.outcome.losses)])
    _fill(rank, tensors, main.tensors, part, everybody)
    rank.restored_twins.append(partial(_fill, own={}, main=main.tensors, part=part, remembered=[]))


def _drawn(shards: Sequence[Shard]) -> int:
    """How far in the batches the furthest worker was."""
    workers = [shard for shard in shards if shard.facts["role"] != "server"]
    return max(int(part["drawn"]) for shard in workers for part in shard.facts["parts"][-1:])


def _outcome(shard: Shard) -> Outcome:
    outcome = Outcome(rank=shard.rank)
    Notes().restore(outcome, shard.tensors, shard.facts["written"])
    return outcome


def _take_over(outcome: Outcome, found: Outcome) -> None:
    for name in Outcome.__slots__:
        if name != "rank":
            setattr(outcome, name, getattr(found, name))


def _fill(
    rank: Any,
    own: Mapping[str, Tensor],
    main: Mapping[str, Tensor],
    part: Mapping[str, Any],
    remembered: Sequence[Shard],
) -> None:
    """The rank's replica (or its twin's), what its strategy remembers, and how far it is."""
    learner = rank.model
    replica = learner.replica
    load_module(replica.module, own, main)
    replica.updates.kept = KeptUpdates(
        replica.layout, [(shard.tensors, shard.facts["parts"][0]["optimizer"]) for shard in remembered]
    )
    for name, tensor in own.items():
        if name.startswith("state/"):
            learner.states[name.removeprefix("state/")] = tensor.clone()  # its file is let go
    learner.updates = part["updates"]
    rank.drawn = part["drawn"]
