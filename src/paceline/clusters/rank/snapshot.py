"""State of a rank between two generations, as a shard of a checkpoint.

Batches, dropout and the like are determined by seed, rank and step, so they are not saved. A strategy lists in
`replicates` the roles that have the same parameters as the reporter. These are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from paceline.checkpoints import Shard
from paceline.clusters.rank.notes import Notes
from paceline.model.optimizer.saved_state import keep_module, keep_updates, names_of_state

if TYPE_CHECKING:
    from paceline.clusters.rank.learner import Learner
    from paceline.clusters.rank.rank import Rank

LOST = "lost"
"""Key in the facts of a rank that the run continued without."""


def twin_prefix(number: int) -> str:
    """Return the prefix of the names of a twin's tensors. Number 0 is the rank itself."""
    return f"twin.{number}/" if number else ""


def snapshot(rank: Rank, step: int, notes: Notes) -> Shard:
    """Return the shard of a rank. Its tensors are in use: copy them before the next generation begins."""
    replicates = rank.role in rank.job.declared.replicates
    rank.outcome.memory = rank.ledger.peak
    tensors, written = notes.keep(rank.outcome)
    parts = []
    for number, each in enumerate((rank, *rank.twins)):
        lean = replicates and (number > 0 or not rank.is_reporter)
        found, facts = learner_state(each.model, lean=lean)
        tensors |= {twin_prefix(number) + name: tensor for name, tensor in found.items()}
        parts.append({**facts, "drawn": each.drawn if each.own_pace else step})
    average, log_facts = rank.log.keep()
    tensors |= average
    facts = {
        "role": rank.role,
        "parts": parts,
        "seconds": rank.now(),
        "written": written,
        "log": log_facts,
        "chance": {
            "program": None if rank._rng is None else _stream(rank._rng),
            "delay": _stream(rank.delay_rng),
            "unused": [] if rank.price is None else rank.price.unused(),
        },
    }
    return Shard(rank=rank.rank, tensors=tensors, facts=facts)


def learner_state(
    learner: Learner[Any], *, lean: bool, with_unused: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the facts of a replica. `with_unused`: see `keep_updates`."""
    replica = learner.replica
    tensors = keep_module((replica.whole or replica).module, parameters=not lean)
    remembered, facts = keep_updates(replica.updates, replica.layout, with_unused=with_unused)
    everything = [0, replica.layout.length] if replica.holding.is_whole else None
    if lean and any(each["shard"] == everything for each in facts):  # the reporter has the same parameters
        remembered, facts = {}, []
    tensors |= remembered | {f"state/{name}": tensor for name, tensor in learner.states.items()}
    return tensors, {"optimizer": facts, "updates": learner.updates}


def _stream(generator: np.random.Generator) -> dict[str, Any]:
    state: Any = generator.bit_generator.state
    return dict(state)


def model_facts(rank: Rank) -> dict[str, Any]:
    """Return the location of the run's model in a checkpoint, for readers that have no task."""
    is_mean = rank.log.evaluations.is_of_all
    workers = [each for each in rank.workers if not rank.is_lost(each)]
    replica = rank.model.replica
    return {
        "names": names_of_state((replica.whole or replica).module),
        "ranks": workers if is_mean else [rank.rank],
        "is_mean": is_mean,
    }
