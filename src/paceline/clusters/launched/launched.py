"""Processes started by a launcher: torchrun, mpirun, srun. Each runs the same script and is one rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.clusters.base.checks import (
    check_deadline,
    check_device_word,
    check_flag,
    check_real_stragglers,
    check_threads,
    device_words,
    thread_words,
)
from paceline.clusters.base.job import Cluster, Consult, Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.launched.launchers import LaunchedProcess, read_place
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.errors import UnknownNameError
from paceline.runs.run import Progress

LINKS = ("shared-memory", "tcp")


@dataclass(frozen=True, slots=True)
class Launched(Cluster):
    """The processes that were launched together with this one.

    The environment contains the rank of this process and the address of the others. Every process calls `pl.train` with
    the same arguments, and gets the same run.
    """

    link: str = "shared-memory"
    """Link between ranks of one host: shared-memory or tcp. Ranks of different hosts always use TCP."""
    encrypt: bool | None = None
    """Whether messages between hosts are encrypted. None to encrypt if there are several hosts."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Slowdown factor of the computations, by rank."""
    delay: Times | Mapping[int, Times] | None = None
    """Additional time of each computation: one distribution for all ranks, or one for each rank."""
    deadline_s: float = 60.0
    """Seconds that a rank waits for another one before the run ends with an error."""
    ports: range | None = None
    """Ports on which the ranks of this host may listen. None for any free port."""
    threads: int | None = None
    """Compute threads of each rank. They can change the last bits of sums. None for a share of the cores."""
    device: str = "cpu"
    """Compute device, as for `pl.Local`. Ranks of one host are assigned to its devices in turn."""

    def __post_init__(self) -> None:
        check_deadline(self.deadline_s)
        check_flag("encrypt", self.encrypt, optional=True)
        check_threads(self.threads)
        check_device_word(self.device)
        if self.link not in LINKS:
            raise UnknownNameError("link", str(self.link), LINKS)
        check_real_stragglers(self.stragglers, self.place.ranks)

    @property
    def place(self) -> LaunchedProcess:
        return read_place(os.environ)

    @property
    def ranks(self) -> int:
        """Number of all processes, including a strategy's servers."""
        return self.place.ranks

    @property
    def launch_id(self) -> str:
        return self.place.launch_id

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
        if self.link != LINKS[0]:
            words.append(f"connected by {self.link}")
        return ", ".join([*words, *device_words(self.device)])
