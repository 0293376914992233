"""One strategy of a running comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from paceline.analysis.comparison.entry import Entry
from paceline.errors import ConfigurationError, PacelineError, TaskError
from paceline.runs.run import Progress, Run

if TYPE_CHECKING:
    from paceline.clusters.base.job import Cluster
    from paceline.task.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Progress of a comparison, passed to its progress callback."""

    name: str
    """Name of the entry."""
    round: int
    """Number of the round, from 1."""
    rounds: int
    progress: Progress | None = None
    """None if the run is about to start, or has just ended."""
    run: Run | None = None
    """The run that has just ended; None otherwise."""
    error: str | None = None
    """Reason that the run failed; None if it did not."""


Watcher = Callable[[Stage], None]


class Trainer(Protocol):
    """Function that trains a task on a cluster, with the options of `pl.train`."""

    def __call__(self, task: Task, cluster: Cluster, **words: Any) -> Run: ...


@dataclass(slots=True, kw_only=True)
class Contender:
    """A strategy and its runs so far."""

    name: str
    train: Trainer
    words: dict[str, Any]
    """Options of its runs, such as their length."""
    runs: list[Run] = field(default_factory=list)
    error: str | None = None

    def take(
        self, runs: Sequence[Run], cluster: Cluster, *, seed: int, rounds: int, watch: Watcher | None
    ) -> None:
        """Continue after these runs of an interrupted comparison. Refuse runs of a different comparison."""
        for number, run in enumerate(runs[:rounds], start=1):
            asked = {"cluster": str(cluster), "seed": seed + number - 1, "steps": self.words["steps"]}
            found = {"cluster": run.cluster, "seed": run.seed, "steps": run.steps}
            if self.words["stop_at_target"]:
                found["steps"] = asked["steps"]  # the run may have ended earlier
            differing = next((name for name in asked if asked[name] != found[name]), None)
            if differing is not None:
                bound = f"must continue the same comparison: {differing} {asked[differing]}"
                saved = f"{differing} {found[differing]} of {self.name}"
                raise ConfigurationError("resume", bound, saved, "use another folder, or omit resume")
            self.runs.append(run)
            if watch is not None:
                watch(Stage(name=self.name, round=number, rounds=rounds, run=run))

    def run(
        self, task: Task, cluster: Cluster, *, seed: int, round: int, rounds: int, watch: Watcher | None
    ) -> None:
        """Train once more. Errors are recorded, but a task that cannot be built ends the comparison."""

        def tell(**news: Any) -> None:
            if watch is not None:
                watch(Stage(name=self.name, round=round, rounds=rounds, **news))

        def show(progress: Progress) -> None:
            tell(progress=progress)

        tell()
        try:
            run = self.train(
                task, cluster, seed=seed, progress=show if watch is not None else None, **self.words
            )
        except TaskError:
            raise
        except Exception as error:  # an error must not lose the runs of the other strategies
            self.error = (
                str(error) if isinstance(error, PacelineError) else f"{type(error).__name__}: {error}"
            )
            tell(error=self.error)
        else:
            self.runs.append(run)
            tell(run=run)

    @property
    def has_ended(self) -> bool:
        """Whether a run has ended, or failed."""
        return bool(self.runs) or self.error is not None

    def entry(self) -> Entry:
        """Return the result. If the strategy failed in any round, its earlier rounds do not count."""
        return Entry(name=self.name, runs=() if self.error else tuple(self.runs), error=self.error)
