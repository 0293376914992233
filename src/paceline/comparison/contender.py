"""One strategy of a comparison while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from paceline.comparison.entry import Entry
from paceline.errors import PacelineError, TaskError
from paceline.run import Progress, Run

if TYPE_CHECKING:
    from paceline.clusters.job import Cluster
    from paceline.task import Task

__all__ = ["Contender", "Stage", "Trainer", "Watcher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a comparison is doing: what its progress callback is given."""

    name: str
    """The entry's."""
    round: int
    """From 1."""
    rounds: int
    progress: Progress | None = None
    """None: the run is about to begin, or has just ended."""
    run: Run | None = None
    """The run that has just ended."""
    error: str | None = None
    """Why the run that has just ended failed."""


Watcher = Callable[[Stage], None]


class Trainer(Protocol):
    """Trains a task on a cluster, by the words of `pl.train`."""

    def __call__(self, task: Task, cluster: Cluster, **words: Any) -> Run: ...


@dataclass(slots=True, kw_only=True)
class Contender:
    """Its runs so far."""

    name: str
    train: Trainer
    words: dict[str, Any]
    """How long its runs are, and the like."""
    runs: list[Run] = field(default_factory=list)
    error: str | None = None

    def run(
        self, task: Task, cluster: Cluster, *, seed: int, round: int, rounds: int, watch: Watcher | None
    ) -> None:
        """Train once more. What fails is noted; a task that cannot be built at all ends the comparison."""

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
        except Exception as error:  # whatever it is, the other strategies' runs are not to be lost by it
            self.error = (
                str(error) if isinstance(error, PacelineError) else f"{type(error).__name__}: {error}"
            )
            tell(error=self.error)
        else:
            self.runs.append(run)
            tell(run=run)

    def entry(self) -> Entry:
        """What came of it. Of a strategy that fails in some round, the rounds before do not count."""
        return Entry(name=self.name, runs=() if self.error else tuple(self.runs), error=self.error)
