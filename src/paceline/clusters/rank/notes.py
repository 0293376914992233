"""Records of a rank, as tensors and JSON values for a checkpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.clusters.base.history import bytes_by
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.rank.columns import Columns, Rows

_PREFIX = "history/"
_NUMBERS = ("counted", "metric", "bytes_sent", "messages_sent", "test_samples", "overruns", "overrun_s")


class Notes:
    """Records of one rank, saved at each checkpoint."""

    def __init__(self) -> None:
        self._records, self._updates, self._logged = Columns(), Columns(), Columns()
        self._losses = Rows("step", "loss", "samples")
        self._bytes_at = Rows("bytes")
        self._bytes_over_time = Rows("seconds", "bytes")

    def keep(self, outcome: Outcome) -> tuple[dict[str, Tensor], dict[str, Any]]:
        logged = [{"step": s, "samples": n, "extra": told} for s, n, told in outcome.logged]
        groups = {
            "records": self._records.arrays(outcome.records),
            "updates": self._updates.arrays(outcome.updates),
            # With independent updates, each update removes logged values from the list, so it is saved as a whole.
            "logged": (Columns() if outcome.updates else self._logged).arrays(logged),
            "losses": self._losses.arrays(outcome.losses),
            "bytes_at": self._bytes_at.arrays([(each,) for each in outcome.bytes_at]),
            "bytes_over_time": self._bytes_over_time.arrays(outcome.bytes_over_time),
        }
        tensors = {
            f"{_PREFIX}{group}/{name}": torch.from_numpy(array)
            for group, arrays in groups.items()
            for name, array in arrays.items()
        }
        facts = {name: getattr(outcome, name) for name in _NUMBERS}
        facts["lost"] = [list(each) for each in outcome.lost]
        facts["memory"] = outcome.memory
        facts["staleness"] = {str(key): count for key, count in outcome.staleness.items()}
        return tensors, facts

    def restore(self, outcome: Outcome, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore the records into an empty outcome."""
        of: defaultdict[str, dict[str, np.ndarray]] = defaultdict(dict)
        for name, tensor in tensors.items():
            if name.startswith(_PREFIX):
                group, _, column = name.removeprefix(_PREFIX).partition("/")
                of[group][column] = tensor.numpy()
        outcome.records = Columns.rows(of["records"], "metric")
        outcome.updates = Columns.rows(of["updates"], "metric")
        logged = Columns.rows(of["logged"])
        outcome.logged = [(each["step"], each["samples"], each["extra"]) for each in logged]
        outcome.losses = self._losses.rows(of["losses"])
        outcome.bytes_at = [each for (each,) in self._bytes_at.rows(of["bytes_at"])]
        outcome.bytes_over_time = self._bytes_over_time.rows(of["bytes_over_time"])
        for name in _NUMBERS:
            setattr(outcome, name, facts[name])
        outcome.lost = [(rank, step) for rank, step in facts["lost"]]
        outcome.memory = dict(facts.get("memory", {}))  # older checkpoints do not have it
        outcome.staleness = {int(key): count for key, count in facts["staleness"].items()}


def put_together(outcomes: Sequence[Outcome], reporter: int) -> Outcome:
    """Merge the records of all ranks into the reporter's outcome, for a run that resumes with different ranks."""
    whole = outcomes[reporter]
    whole.bytes_at = bytes_by(outcomes, [record["seconds"] for record in whole.records])
    whole.bytes_over_time = []
    for each in (outcome for outcome in outcomes if outcome is not whole):
        whole.losses += each.losses
        whole.logged += each.logged
        whole.bytes_sent += each.bytes_sent
        whole.messages_sent += each.messages_sent
        whole.lost += each.lost
        for key, count in each.staleness.items():
            whole.staleness[key] = whole.staleness.get(key, 0) + count
    return whole
