"""One configuration of a plan."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.clusters.base.job import Cluster
from paceline.planner.prediction import Prediction
from paceline.planner.sizing import with_workers
from paceline.strategies.registry.descriptions import equals_single
from paceline.task.task import Task

if TYPE_CHECKING:
    from paceline.planner.estimate import Choice, Estimator


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTime:
    """Estimated seconds until a task reaches its target."""

    seconds: float
    low: float
    """Smallest value over the seeds."""
    high: float
    seeds: int
    batches: float
    """Global batches until the target, as a mean."""
    first: float
    """Seconds with the seed of the plan, which is that of the runs of `plan.check`."""

    @property
    def spread(self) -> float:
        """Half of the range, relative to the mean."""
        return (self.high - self.low) / 2 / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One configuration, and its prediction. `pl.train` accepts it as a strategy."""

    strategy: str
    """A spec, such as "k-sync:k=3"."""
    workers: int
    recompute: bool
    """Whether activations are computed again in the backward pass."""
    prediction: Prediction
    batch_seconds: float
    """Seconds for as many samples as one batch of the task has."""
    hosts: int
    price_per_second: float | None = None
    """Price of the hosts that it uses. None if unknown."""
    target: TargetTime | None = None
    """Estimated time to the task's target. None if it was not estimated, or not reached."""

    @classmethod
    def of(cls, choice: Choice, prediction: Prediction, estimator: Estimator) -> Entry:
        """Return the entry of a prediction."""
        cluster = estimator.cluster
        hosts, price = cluster.hosts(choice.workers), cluster.price_per_hour
        return cls(
            strategy=choice.strategy,
            workers=choice.workers,
            recompute=choice.recompute,
            prediction=prediction,
            batch_seconds=estimator.batch_seconds(choice, prediction),
            hosts=hosts,
            price_per_second=None if price is None else price * hosts / 3600,
        )

    @property
    def family(self) -> str:
        """Name of the strategy, without parameters."""
        return self.strategy.partition(":")[0]

    @property
    def equals_single(self) -> bool:
        """Whether each step gives the weights of one worker with the whole batch. Codecs round what is sent."""
        return equals_single(self.strategy) and self.codec is None

    @property
    def codec(self) -> str | None:
        """The codec of what is sent. None if there is none."""
        words = self.strategy.partition(":")[2].split(",")
        return next((word.partition("=")[2] for word in words if word.startswith("codec=")), None)

    @property
    def seconds(self) -> float:
        """Seconds to the target if they are estimated, else of a batch."""
        return self.batch_seconds if self.target is None else self.target.seconds

    @property
    def misses_bytes(self) -> int:
        """Bytes of memory that the largest rank lacks. 0 if it fits."""
        limit = self.prediction.device_bytes
        return 0 if limit is None else max(0, self.prediction.memory_bytes - limit)

    @property
    def cost(self) -> float | None:
        """Price of one batch, or of the run to the target if that time is estimated. None if prices are unknown."""
        if self.price_per_second is None:
            return None
        return self.price_per_second * self.seconds

    def applied(self, task: Task, cluster: Cluster | None) -> tuple[Task, str, Cluster]:
        """Return the task, the strategy and the cluster for a run of this entry."""
        if self.recompute != bool(task.recompute):
            task = dataclasses.replace(task, recompute=self.recompute)
        return task, self.strategy, with_workers(cluster, self.workers)

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as a dictionary for JSON."""
        found = dataclasses.asdict(self)
        found["prediction"] |= {"fits": self.prediction.fits}
        return found | {"equals_single": self.equals_single, "cost": self.cost}

    def __str__(self) -> str:
        again = ", recomputing activations" if self.recompute else ""
        return f"{self.strategy} on {self.workers} worker{'s' * (self.workers != 1)}{again}"
