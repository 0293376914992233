"""What a cluster is asked to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from paceline.clusters.keeping import Keeping
from paceline.clusters.legs import Legs
from paceline.context import Program, Strategy
from paceline.replica.autocast import Autocast
from paceline.run import Progress, Record
from paceline.task import Task

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.clusters.outcome import Outcome

__all__ = ["Cluster", "Consult", "Job", "Watch"]

_START_S = 60.0  # to unpack a task, at least
_PREPARE_S = 1800.0  # to compile or trace a model besides

Consult: TypeAlias = "Callable[[Record, dict[str, Tensor] | None], bool]"
"""Called in the driver with a record and, where it was asked for, the state of the model; whether the run shall end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """What a run's callbacks want to see. The reporter waits for them each time."""

    steps: bool = False
    """Every record."""
    evaluations: bool = False
    """Records with a metric."""
    state: bool = False
    """The model's state, with those."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run, before it happens."""

    strategy: Strategy
    roles: tuple[str, ...]
    """The role of each rank. Workers come first."""
    seed: int
    name: str = ""
    task: Task | None = None
    """With its model built, or with what builds it alike on every rank. None: the role programs communicate only."""
    steps: int = 0
    evaluate_every: int = 0
    stop_at_target: bool = False
    autocast: tuple[Autocast, ...] = ()
    """What the model is computed under."""
    watch: Watch = Watch()
    compiles: bool = False
    """Whether its model is compiled before the run begins, which may take minutes."""
    legs: Legs = field(default_factory=Legs)
    keeping: Keeping | None = None
    """None: nothing is written to disk."""
    workers: int = field(init=False)
    """Ranks that compute gradients: all but those that only serve."""

    def __post_init__(self) -> None:
        # Counted once: every rank of a large simulation asks several times.
        object.__setattr__(self, "workers", sum(role != "server" for role in self.roles))

    def start_s(self, deadline_s: float) -> float:
        """How long its ranks may take to start, if they wait for each other so long at most."""
        prepares = self.compiles or getattr(self.strategy, "cuts_model", False)
        return max(deadline_s, _PREPARE_S if prepares else _START_S)

    @property
    def ranks(self) -> int:
        return len(self.roles)

    @property
    def reporter(self) -> int:
        """The rank whose replica is the run's model: the first server, or the first worker where there is none."""
        workers = self.workers
        return workers if workers < self.ranks else 0

    def can_lose(self, rank: int) -> bool:
        """Whether the run may go on without a rank. Not without the one that keeps its record."""
        return rank != self.reporter and self.roles[rank] in getattr(self.strategy, "expendable", ())

    def program(self, rank: int) -> Program:
        program: Program = getattr(self.strategy, self.roles[rank])
        return program


class Cluster(Protocol):
    """Where a job runs."""

    @property
    def workers(self) -> int: ...

    def run(
        self,
        job: Job,
        progress: Callable[[Progress], None] | None = None,
        consult: Consult | None = None,
    ) -> list[Outcome]:
        """`consult`: called with what `job.watch` asks for, one after the other."""
        ...
