"""Processes that a launcher has started already: torchrun, mpirun, srun. Each runs the same script and is one rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.clusters.checks import (
    check_deadline,
    check_device_word,
    check_real_stragglers,
    check_threads,
    device_words,
    thread_words,
)
from paceline.clusters.job import Consult, Job
from paceline.clusters.launched.launchers import LaunchedProcess, read_place
from paceline.clusters.outcome import Outcome
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.run import Progress

__all__ = ["Launched"]


@dataclass(frozen=True, slots=True)
class Launched:
    """The processes that were launched together with this one.

    The environment says which rank this is and where the others are. Every process calls `pl.train` alike, and gets the
    same run.
    """

    encrypt: bool | None = None
    """Whether messages between hosts are encrypted. None: if there are several hosts."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """How many times as long a rank computes."""
    delay: Times | Mapping[int, Times] | None = None
    """What each computation takes longer: of all ranks, or by rank."""
    deadline_s: float = 60.0
    """How long a rank waits for another before the run ends with an error."""
    ports: range | None = None
    """The ports that this host's ranks may listen at. None: any that is free."""
    threads: int | None = None
    """With how many threads each rank computes, which can change the last bits of sums. None: a share of the cores."""
    device: str = "cpu"
    """Where ranks compute: as for `pl.Local`. Those of one host are given its devices in turn."""

    def __post_init__(self) -> None:
        check_deadline(self.deadline_s)
        check_threads(self.threads)
        check_device_word(self.device)
        check_real_stragglers(self.stragglers, self.place.ranks)

    @property
    def place(self) -> LaunchedProcess:
        return read_place(os.environ)

    @property
    def ranks(self) -> int:
        """All processes: those of a strategy's servers come out of these."""
        return self.place.ranks

    @property
    def workers(self) -> int:
        return self.place.ranks

    @property
    def stragglers(self) -> Stragglers:
        return Stragglers(slow=self.slow, delay=self.delay)

    def run(
        self,
        job: Job,
        progress: Callable[[Progress], None] | None = None,
        consult: Consult | None = None,
    ) -> list[Outcome]:
        from paceline.clusters.launched.run import LaunchedRun

        return LaunchedRun(self, job).work(progress, consult)

    def __str__(self) -> str:
        place = self.place
        words = [f"{place.ranks} processes launched by {place.launcher}", *thread_words(self.threads)]
        return ", ".join([*words, *device_words(self.device)])
