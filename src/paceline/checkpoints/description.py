"""Description of a run, as far as its checkpoints depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paceline.task.fingerprint import fingerprint, layers, settings
from paceline.task.task import Task

if TYPE_CHECKING:
    from torch import nn

_MAY_DIFFER = ("target",)


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """A run that writes checkpoints."""

    task: Task
    module: nn.Module
    name: str
    strategy: str
    roles: tuple[str, ...]
    """Role of each rank."""
    replicates: Sequence[str]
    """Roles whose ranks hold no state of their own: see `paceline.context.Strategy`."""
    cluster: str
    launch_id: str | None
    """The launch that this process belongs to. None if the cluster starts its own processes."""
    steps: int
    seed: int
    autocast: str

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The description that is stored in checkpoints."""
        return {
            "name": self.name,
            "strategy": self.strategy,
            "replicates": list(self.replicates),
            "cluster": self.cluster,
            "seed": self.seed,
            "better": self.task.better_way,
            "task": self._task_facts(),
            "layers": layers(self.module),
            "schedule_every": str(self.task.schedule_every),
        }

    def _task_facts(self) -> dict[str, str]:
        """Return the settings that must be unchanged to resume a run."""
        found = fingerprint(self.task, self.module, samples=0, test_samples=0)
        found |= settings(self.task, self.module)
        found |= {"seed": str(self.seed), "autocast": self.autocast}
        return {name: value for name, value in found.items() if name not in _MAY_DIFFER}
