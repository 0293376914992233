"""Workers as processes of this machine: the default cluster, with nothing to install or start."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.clusters.checks import (
    check_compute,
    check_device_word,
    check_real_stragglers,
    check_threads,
    check_workers,
    device_words,
    share_of_cores,
    thread_words,
)
from paceline.clusters.job import Consult, Job
from paceline.clusters.outcome import Outcome
from paceline.costs.link import Link
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.run import Progress

if TYPE_CHECKING:
    from paceline.clusters.process.wiring import TcpNetwork

__all__ = ["Local"]

SHARED_MEMORY, TCP = "shared-memory", "tcp"
LINKS = (SHARED_MEMORY, TCP)
_ENCRYPT_REMEDY = "memory that workers share cannot be read by others, and an emulated link is no network"
MAX_RANKS = 256  # each ordered pair of ranks has four megabytes of address space


@dataclass(frozen=True, slots=True)
class Local:
    """Worker processes on this machine, which talk through shared memory.

    With a `pl.Link` their messages take as long as that link would; with "tcp" they pass the loopback interface, as
    between hosts. Each rank is then a host of its own. With `compute` each gradient takes as long as is drawn: real
    processes, messages and mathematics, on the clock of machines that one does not have. `pl.Simulated` with the same
    arguments predicts such a run.
    """

    workers: int = 4
    link: str | Link = "shared-memory"
    encrypt: bool = False
    """Whether nobody else on this machine could read what passes by TCP."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """How many times as long a rank computes. Below 1 only with `compute`: a real worker cannot be made faster."""
    delay: Times | Mapping[int, Times] | None = None
    """What each computation takes longer: of all ranks, or by rank."""
    deadline_s: float = 60.0
    """How long a rank waits for another before the run ends with an error."""
    threads: int | None = None
    """With how many threads each rank computes, which can change the last bits of sums. None: a share of the cores."""
    compute: Times | None = None
    """Seconds that one gradient takes at least, of whatever size: a worker sleeps for what it does not compute. None:
    what it takes."""
    device: str = "cpu"
    """Where ranks compute: "cpu"; an accelerator by torch's name, such as "cuda"; "gpu", whichever there is; or "auto",
    which is the processor where there is none. Ranks are given the devices of this machine in turn."""

    def __post_init__(self) -> None:
        check_workers(self.workers, at_most=MAX_RANKS - 1)
        check_threads(self.threads)
        check_compute(self.compute)
        _check_link(self.link)
        if self.encrypt and self.link != TCP:
            raise ConfigurationError("encrypt", 'must be False unless link="tcp"', True, _ENCRYPT_REMEDY)
        if not self.deadline_s > 0:
            raise ConfigurationError("deadline_s", "must be above 0", self.deadline_s, "60.0 is the default")
        if self.compute is None:
            check_real_stragglers(self.stragglers, self.workers)
        else:
            self.stragglers.check(self.workers)
        check_device_word(self.device)

    @property
    def stragglers(self) -> Stragglers:
        return Stragglers(slow=self.slow, delay=self.delay)

    def run(
        self,
        job: Job,
        progress: Callable[[Progress], None] | None = None,
        consult: Consult | None = None,
    ) -> list[Outcome]:
        from paceline.clusters.local.emulation import note_emulation
        from paceline.clusters.local.launch import Processes
        from paceline.clusters.local.worker import Assignment

        assignment = Assignment(
            job=job,
            stragglers=self.stragglers,
            compute=self.compute,
            link=self.link if isinstance(self.link, Link) else None,
            network=self._network(),
            deadline_s=self.deadline_s,
            threads=self.threads or share_of_cores(job.workers),
            device=self.device,
        )
        with Processes(assignment) as processes:
            outcomes = processes.work(progress, consult)
        if self._emulated:
            note_emulation(self._emulated, outcomes, outcomes[job.reporter])
        return outcomes

    @property
    def _emulated(self) -> str:
        """What is only emulated; empty if all is real."""
        words = [] if self.compute is None else [f"compute {self.compute}"]
        words += [f"link {self.link}"] if isinstance(self.link, Link) else []
        return ", ".join(words)

    def _network(self) -> TcpNetwork | None:
        from paceline.clusters.process.wiring import TcpNetwork

        if self.link != TCP:
            return None
        return TcpNetwork(run_id=secrets.token_bytes(16), token=secrets.token_bytes(16), encrypt=self.encrypt)

    def __str__(self) -> str:
        emulated = f" (emulated: {self._emulated})" if self._emulated else ""
        words = [f"{self.workers} local workers{emulated}"]
        if self.link == TCP:
            words.append("over encrypted TCP" if self.encrypt else "over TCP")
        words += [f"rank {rank} {factor:g}x as slow" for rank, factor in sorted(self.slow.items())]
        if self.delay is not None:
            words.append(f"delay {self.delay}")
        words += [*thread_words(self.threads), *device_words(self.device)]
        return ", ".join(words)


def _check_link(link: object) -> None:
    if isinstance(link, Link) or link in LINKS:
        return
    if isinstance(link, str):
        raise UnknownNameError("link", link, (*LINKS, "a pl.Link"))
    remedy = 'write pl.Link(bandwidth="100Mbps", latency="2ms"), say, to emulate a slow network'
    raise ConfigurationError("link", 'must be "shared-memory", "tcp" or a pl.Link', link, remedy)
