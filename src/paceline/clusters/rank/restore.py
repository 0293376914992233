"""Restore of a rank from a checkpoint, or start of a new rank if the run resumes with different ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.checkpoints import Checkpoint, Shard
from paceline.clusters.base.job import Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.rank.notes import Notes, put_together
from paceline.clusters.rank.snapshot import LOST, twin_prefix
from paceline.clusters.rank.trial import compare_trials
from paceline.model.loss_scale import NAME as LOSS_SCALE
from paceline.model.optimizer.saved_state import SavedOptimizerState, load_module

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank

TRIAL = "trial"
"""Key in the facts of the first rank: see `paceline.clusters.rank.trial`."""


class CheckpointFiles:
    """Files of a checkpoint, each read once. Ranks of one process share it."""

    def __init__(self, job: Job, folder: Path | None = None) -> None:
        """Open the checkpoint in a folder. None for the one that the run resumes from."""
        assert job.checkpointing is not None
        folder = folder or job.checkpointing.resumed
        assert folder is not None
        self._checkpoint = Checkpoint.open(folder)
        self._read: dict[int, Shard] = {}
        facts = self._checkpoint.facts
        self.reporter = int(facts["reporter"])
        self.fit = facts["strategy"] == job.checkpointing.facts["strategy"] and facts["roles"] == list(
            job.roles
        )
        """Whether each rank of the run has its own file."""

    def of(self, rank: int) -> Shard:
        if rank not in self._read:
            self._read[rank] = self._checkpoint.shard(rank)
        return self._read[rank]

    def check_same_task(self, trial: Mapping[str, Any]) -> None:
        """Refuse to resume if the task computes different values. `trial` is the trial of the present task."""
        differ = compare_trials(self.of(0).facts.get(TRIAL, {}), trial)
        if differ:
            raise self._checkpoint.of_another_task(differ)

    def all(self) -> list[Shard]:
        """Return the shards of all ranks, except lost ones."""
        shards = [self.of(rank) for rank in range(self._checkpoint.ranks)]
        return [shard for shard in shards if LOST not in shard.facts]


def restore(rank: Rank, shards: CheckpointFiles) -> None:
    """Restore a rank before its program starts."""
    main = shards.of(shards.reporter)
    own = shards.of(rank.rank) if shards.fit else None
    if own is None or LOST in own.facts:
        _join(rank, main, shards)
    else:
        _go_on(rank, own, main)
    rank.model.resumed_metric = main.facts["log"].get("announced")


def restore_shards(rank: Rank, shards: CheckpointFiles) -> None:
    """Restore the model of a rank from the parts of all ranks. Its records stay."""
    main = shards.of(shards.reporter)
    part = {"drawn": rank.drawn, "updates": main.facts["parts"][0]["updates"]}
    restore_learner(rank, {}, main.tensors, part, shards.all())
    rank.model.resumed_metric = main.facts["log"].get("announced")


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
    restore_learner(
        rank, own.tensors, main.tensors, facts["parts"][0], [own if facts["parts"][0]["optimizer"] else main]
    )
    for number, part in enumerate(facts["parts"][1:], start=1):
        twins = _with_prefix(own.tensors, twin_prefix(number))
        rank.restored_twins.append(
            partial(restore_learner, own=twins, main=main.tensors, part=part, remembered=[])
        )


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _join(rank: Rank, main: Shard, shards: CheckpointFiles) -> None:
    """Start a rank that has no file of its own with the reporter's state."""
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
    restore_learner(rank, tensors, main.tensors, part, everybody)
    rank.restored_twins.append(partial(restore_learner, own={}, main=main.tensors, part=part, remembered=[]))


def _drawn(shards: Sequence[Shard]) -> int:
    """Return the number of batches that the furthest worker has drawn."""
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


def restore_learner(
    rank: Any,
    own: Mapping[str, Tensor],
    main: Mapping[str, Tensor],
    part: Mapping[str, Any],
    remembered: Sequence[Shard],
) -> None:
    """Restore the replica of a rank or a twin, the state of its strategy, and its progress."""
    learner = rank.model
    replica = learner.replica
    replica.build()  # the values are copied into the module's own memory
    load_module(replica.module, own, main)
    replica.updates.kept = SavedOptimizerState(
        replica.layout, [(shard.tensors, shard.facts["parts"][0]["optimizer"]) for shard in remembered]
    )
    # A rank without a file starts with the reporter's loss scale: ranks of a pipeline must have the same.
    common = {name: main[name] for name in (f"state/{LOSS_SCALE}",) if name in main}
    for name, tensor in {**common, **own}.items():
        if name.startswith("state/"):
            learner.states[name.removeprefix("state/")] = tensor.clone()  # a copy: the file is closed later
    learner.updates = part["updates"]
    rank.drawn = part["drawn"]
