"""Job: the description of a run that a cluster executes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from paceline.checkpoints.generations import GenerationPlan
from paceline.checkpoints.plan import CheckpointPlan
from paceline.clusters.base.declarations import Declarations
from paceline.context import Program, Strategy
from paceline.model.autocast import Autocast
from paceline.runs.run import Progress, Record
from paceline.task.task import Task

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.clusters.base.outcome import Outcome

_START_S = 60.0  # minimum timeout to unpack a task
_PREPARE_S = 1800.0  # timeout to compile or trace a model

Consult: TypeAlias = "Callable[[Record, dict[str, Tensor] | None], bool]"
"""Callback in the driver. Arguments: a record, and the model state if requested. Returns True to end the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """Events that a run's callbacks receive. The reporter waits for the callbacks each time."""

    steps: bool = False
    """Whether callbacks receive every record."""
    evaluations: bool = False
    """Whether callbacks receive records with a metric."""
    state: bool = False
    """Whether callbacks receive the model state with records that have a metric."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Description of one run."""

    strategy: Strategy
    roles: tuple[str, ...]
    """Role of each rank. Workers come first."""
    seed: int
    name: str = ""
    task: Task | None = None
    """Task with its model, or with a function that builds the same model on every rank. None if there is no model."""
    steps: int = 0
    evaluate_every: int = 0
    stop_at_target: bool = False
    autocast: tuple[Autocast, ...] = ()
    """Autocast settings of the model."""
    watch: Watch = Watch()
    compiles: bool = False
    """Whether the model is compiled before the run starts. This may take minutes."""
    generations: GenerationPlan = field(default_factory=GenerationPlan)
    checkpointing: CheckpointPlan | None = None
    """Checkpoint settings. None if no checkpoints are written."""
    min_workers: int | None = None
    """Minimum number of workers. The run continues without lost workers while this many are left. None if the loss of
    a worker ends the run, unless the strategy continues without it."""
    workers: int = field(init=False)
    """Number of ranks that compute gradients: all except pure servers."""
    declared: Declarations = field(init=False, repr=False, compare=False)
    """What the strategy declares about itself."""

    def __post_init__(self) -> None:
        # Stored, because every rank of a large simulation reads them several times.
        object.__setattr__(self, "workers", sum(role != "server" for role in self.roles))
        object.__setattr__(self, "declared", Declarations.of(self.strategy))

    def start_s(self, deadline_s: float) -> float:
        """Return the start timeout of the ranks in seconds: at least `deadline_s`."""
        prepares = self.compiles or self.declared.cuts_model
        return max(deadline_s, _PREPARE_S if prepares else _START_S)

    @property
    def ranks(self) -> int:
        return len(self.roles)

    @property
    def reporter(self) -> int:
        """Rank that stores the run's model and records: the first server, or the first worker if there is no
        server."""
        workers = self.workers
        return workers if workers < self.ranks else 0

    def can_lose(self, rank: int) -> bool:
        """Return whether the run may continue without a rank.

        If members regroup, that is any rank except a server, otherwise an expendable one other than the reporter.
        """
        if self.regroups:
            return self.state_at != "server" or rank != self.reporter
        return rank != self.reporter and self.roles[rank] in self.declared.expendable

    @property
    def state_at(self) -> str:
        """Where the state of the run is between two steps: see `Strategy.state_at`."""
        return "everywhere" if self.declared.in_step else self.declared.state_at

    @property
    def regroups(self) -> bool:
        """Whether the members of the run repeat a step without lost ranks, in a new generation."""
        return self.min_workers is not None and (
            self.state_at in ("everywhere", "server", "workers") or self.returns_to_checkpoint
        )

    @property
    def returns_to_checkpoint(self) -> bool:
        """Whether a loss of a part of the state makes the members go back to the newest checkpoint."""
        if self.state_at != "shards" or self.checkpointing is None:
            return False
        return set(self.roles) == {"worker"} and "worker" in self.declared.replicates

    def program(self, rank: int) -> Program:
        program: Program = getattr(self.strategy, self.roles[rank])
        return program


@runtime_checkable
class Cluster(Protocol):
    """Where a job runs. A cluster inherits from this class, so that it gets the defaults."""

    @property
    def workers(self) -> int: ...

    @property
    def math(self) -> str:
        """Either "real", or "none" if the cluster computes shapes and seconds only."""
        return "real"

    @property
    def min_workers(self) -> int | None:
        """Minimum number of workers: see `Job.min_workers`."""
        return None

    @property
    def restart(self) -> bool:
        """Whether a lost worker is started again and joins the run."""
        return False

    @property
    def ranks(self) -> int | None:
        """Number of processes that a launcher has started. None if the cluster starts its own."""
        return None

    @property
    def launch_id(self) -> str | None:
        """The launch that this process belongs to. None if the cluster starts its own processes."""
        return None

    def run(
        self,
        job: Job,
        progress: Callable[[Progress], None] | None = None,
        consult: Consult | None = None,
    ) -> list[Outcome]:
        """Run the job and return the outcome of each rank. `consult` is called for each event in `job.watch`."""
        ...
