"""Workers as processes on this machine: the default cluster. It needs no installation and no running service."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.clusters.base.checks import (
    check_compute,
    check_cuts,
    check_deadline,
    check_device_word,
    check_faults,
    check_faults_fit,
    check_flag,
    check_joins,
    check_min_workers,
    check_real_stragglers,
    check_restart,
    check_threads,
    check_workers,
    device_words,
    min_workers_words,
    share_of_cores,
    thread_words,
)
from paceline.clusters.base.job import Cluster, Consult, Job
from paceline.clusters.base.outcome import Outcome, reporter_of
from paceline.costs.description import ClusterDescription
from paceline.costs.fabric import Fabric, check_hosts
from paceline.costs.link import Link
from paceline.costs.slow_links import check_ranks, slow_links
from paceline.costs.slow_links import words as slow_links_in_words
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.faults import Fault, Random, faults_of_ranks
from paceline.runs.run import Progress

if TYPE_CHECKING:
    from paceline.clusters.process.wiring import TcpNetwork

SHARED_MEMORY, TCP = "shared-memory", "tcp"
LINKS = (SHARED_MEMORY, TCP)
_ENCRYPT_REMEDY = "other users cannot read shared memory, and an emulated link is not a network"
MAX_RANKS = 256  # each ordered pair of ranks uses four megabytes of address space


@dataclass(frozen=True, slots=True)
class Local(Cluster):
    """Worker processes on this machine that communicate through shared memory.

    With a `pl.Link`, messages take as long as on that link. With "tcp", they use the loopback interface, as between
    hosts. Each rank then counts as a separate host. With `compute`, each gradient takes a drawn time: processes,
    messages and computation are real, and the times are those drawn. `pl.Simulated` with the same arguments predicts
    such a run.
    """

    workers: int = 4
    link: str | Link = "shared-memory"
    encrypt: bool = False
    """Whether TCP messages are encrypted, so that no other user of this machine can read them."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Slowdown factor of the computations, by rank. Below 1 only with `compute`: a real worker cannot be made
    faster."""
    delay: Times | Mapping[int, Times] | None = None
    """Additional time of each computation: one distribution for all ranks, or one for each rank."""
    slow_links: Mapping[tuple[int, int], Link | str] = field(default_factory=dict)
    """With a `pl.Link`: pairs of ranks with another link, or with another bandwidth: {(0, 3): "100Mbps"}."""
    deadline_s: float = 60.0
    """Seconds without progress that a rank waits for another one before the run ends with an error."""
    threads: int | None = None
    """Compute threads of each rank. They can change the last bits of sums. None for a share of the cores."""
    compute: Times | None = None
    """Minimum seconds of one gradient of any size. A worker sleeps for the rest of the time. None to use the real
    time."""
    hosts: int | Sequence[int] | None = None
    """With a `pl.Link`: number of emulated hosts, or the number of workers on each. `inside`, `card`,
    `oversubscription` and `order` describe them as in `pl.Simulated`. None if each rank has a host of its own."""
    inside: Link | None = None
    card: str | float | None = None
    oversubscription: float = 1.0
    order: str = "block"
    device: str = "cpu"
    """Compute device: "cpu"; an accelerator by its torch name, such as "cuda"; "gpu" for any accelerator; or "auto" for
    an accelerator if there is one, else the CPU. Ranks are assigned to the devices of this machine in turn."""
    faults: Sequence[Fault | Random] = ()
    """Faults and their times. They are real signals."""
    min_workers: int | None = None
    """Minimum number of workers. The run continues without lost workers while this many are left. None if the loss of
    a worker ends the run, unless the strategy continues without it."""
    restart: bool = False
    """Whether a lost worker gets a new process, which joins the run. Needs `min_workers`."""

    def __post_init__(self) -> None:
        check_workers(self.workers, at_most=MAX_RANKS - 1)
        check_threads(self.threads)
        check_compute(self.compute)
        _check_link(self.link)
        slow_links(self.slow_links, self.link)
        self._check_hosts()
        check_flag("encrypt", self.encrypt)
        if self.encrypt and self.link != TCP:
            raise ConfigurationError("encrypt", 'must be False unless link="tcp"', True, _ENCRYPT_REMEDY)
        check_deadline(self.deadline_s)
        if self.compute is None:
            check_real_stragglers(self.stragglers, self.workers)
        else:
            self.stragglers.check(self.workers)
        check_device_word(self.device)
        check_min_workers(self.min_workers, self.workers)
        check_restart(self.restart, self.min_workers)
        check_faults(self.faults)
        object.__setattr__(self, "faults", tuple(self.faults))

    @classmethod
    def of(cls, described: ClusterDescription, *, workers: int | None = None, **changes: Any) -> Local:
        """Return an emulation of a described cluster (`pl.load_cluster`). `workers` uses its first ranks only.

        Links are emulated. Computations take the time that they take here, unless `compute` is given.
        """
        return cls(**described.arguments(workers) | changes)

    def _check_hosts(self) -> None:
        emulates = isinstance(self.link, Link)
        given = {"hosts": self.hosts, "inside": self.inside, "card": self.card}
        given["oversubscription"] = self.oversubscription if self.oversubscription != 1 else None
        for argument, value in given.items():
            if value is not None and not emulates:
                remedy = 'write link=pl.Link("10Gbps", "50us"), or omit it'
                raise ConfigurationError(argument, "needs an emulated link", value, remedy)
        if self.hosts is not None:
            object.__setattr__(self, "hosts", check_hosts(self.hosts, self.workers))
        elif self.inside is not None:
            remedy = "give their number, or omit inside"
            raise ConfigurationError("inside", "needs hosts with several ranks", self.inside, remedy)
        self._fabric(self.workers)  # raises an error for contradictory values

    def _fabric(self, ranks: int) -> Fabric | None:
        """Return the emulated hosts and links of `ranks` ranks. None if links are real."""
        if not isinstance(self.link, Link):
            return None
        inside = Link("100Gbps", "1us") if self.inside is None else self.inside
        return Fabric(
            hosts=ranks if self.hosts is None else self.hosts,
            link=self.link,
            inside=inside if self.hosts != 1 or self.inside is not None else self.link,
            card=self.card,
            oversubscription=self.oversubscription,
            order=self.order,
        )

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

        slow = slow_links(self.slow_links, self.link)
        check_ranks(slow, max(job.ranks, self.workers))
        check_faults_fit(self.faults, max(job.ranks, self.workers), job.steps)
        check_joins(self.faults, job)
        check_cuts(self.faults, is_network=self.link == TCP, remedy='write link="tcp"')
        assignment = Assignment(
            job=job,
            stragglers=self.stragglers,
            compute=self.compute,
            fabric=self._fabric(job.ranks),
            slow_links=slow,
            network=self._network(),
            deadline_s=self.deadline_s,
            threads=self.threads or share_of_cores(job.workers),
            device=self.device,
            faults=tuple(faults_of_ranks(self.faults, job.ranks)),
            restart=self.restart,
        )
        with Processes(assignment) as processes:
            outcomes = processes.work(progress, consult)
        if self._emulated:
            note_emulation(self._emulated, outcomes, reporter_of(job, outcomes))
        return outcomes

    @property
    def _emulated(self) -> str:
        """Description of the emulated parts. Empty if all are real."""
        words = [] if self.compute is None else [f"compute {self.compute}"]
        words += [f"link {self.link}"] if isinstance(self.link, Link) else []
        fabric = self._fabric(self.workers) if self.hosts is not None else None
        words += [] if fabric is None else fabric.words
        words += slow_links_in_words(slow_links(self.slow_links, self.link))
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
        words += self.stragglers.words()
        words += [*thread_words(self.threads), *device_words(self.device)]
        words += min_workers_words(self.min_workers, restart=self.restart)
        words += [str(fault) for fault in self.faults]
        return ", ".join(words)


def _check_link(link: object) -> None:
    if isinstance(link, Link) or link in LINKS:
        return
    if isinstance(link, str):
        raise UnknownNameError("link", link, (*LINKS, "a pl.Link"))
    remedy = 'for example pl.Link(bandwidth="100Mbps", latency="2ms") emulates a slow network'
    raise ConfigurationError("link", 'must be "shared-memory", "tcp" or a pl.Link', link, remedy)
