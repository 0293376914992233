"""Workers in virtual time: any number of workers, on any network, with or without the mathematics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.clusters.base.checks import (
    check_compute,
    check_cuts,
    check_faults,
    check_faults_fit,
    check_joins,
    check_min_workers,
    check_restart,
    check_threads,
    check_workers,
    min_workers_words,
    thread_words,
)
from paceline.clusters.base.gc_pause import gc_paused
from paceline.clusters.base.job import Cluster, Consult, Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.base.threads import computing_threads
from paceline.clusters.rank.loss_trial import request_trial
from paceline.clusters.simulated.calibrated import (
    calibrated_link,
    knows_gradients,
    link_words,
    settled_link,
    threads_of,
)
from paceline.clusters.simulated.gradient_timer import MeasuredTimes
from paceline.clusters.simulated.models import KnownModel
from paceline.clusters.simulated.simulation import Simulation
from paceline.costs import Link
from paceline.costs.calibration import SHARED_MEMORY, Calibration
from paceline.costs.description import ClusterDescription
from paceline.costs.devices import Device, device_of
from paceline.costs.fabric import Fabric, check_hosts
from paceline.costs.slow_links import check_ranks, slow_links
from paceline.costs.slow_links import words as slow_links_in_words
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.faults import Fault, Random
from paceline.runs.run import Progress
from paceline.system.seeding import seeded

MATHS = ("real", "none")
MAX_WORKERS = 1_000_000


@dataclass(frozen=True, slots=True)
class Simulated(Cluster):
    """Virtual time. `math="real"` gives true losses on a virtual clock; `math="none"` gives the clock alone."""

    workers: int = 4
    compute: Times | None = None
    """Seconds of one gradient of any size. None to measure the task's gradients here, by their number of samples."""
    link: Link | str = "auto"
    """Link between hosts, or between all ranks if there is one host. "shared-memory": shared memory as in `pl.Local`.
    "tcp": TCP on one machine, with `calibration`. "auto": 10 Gbit/s and 50 µs, or shared memory with `calibration`."""
    math: str = "real"
    slow: Mapping[int, float] = field(default_factory=dict)
    delay: Times | Mapping[int, Times] | None = None
    slow_links: Mapping[tuple[int, int], Link | str] = field(default_factory=dict)
    """Pairs of ranks with another link, or with another bandwidth: {(0, 3): "100Mbps"}."""
    hosts: int | Sequence[int] = 1
    """Number of hosts, or the number of workers on each host."""
    inside: Link | None = None
    """Link between the ranks of one host. With one host it connects all ranks, instead of `link`. None for "100Gbps"
    and "1us" if there are several hosts or the link is shared memory; reads of a window use this bandwidth, barriers
    this latency. With one host and no `inside`, `link` connects all ranks, and windows cost nothing."""
    threads: int | None = None
    """Compute threads of each rank. They can change the last bits of sums. None to use the default of `pl.Local`."""
    faults: Sequence[Fault | Random] = ()
    """Faults and their times."""
    min_workers: int | None = None
    """Minimum number of workers: as in `pl.Local`."""
    restart: bool = False
    """Whether lost workers are restarted, as in `pl.Local`. A restart takes no virtual time."""
    device: Device | str | None = None
    """Compute device of each rank: one of `pl.devices`, or its name. Its speed gives the time of counted
    operations."""
    card: str | float | None = None
    """Bandwidth of a host's network card, such as "800Gbps", for messages to other hosts. None if it is unlimited."""
    oversubscription: float = 1.0
    """Bandwidth of all hosts divided by the switch's bandwidth: 2.0 takes twice as long if all hosts send."""
    order: str = "block"
    """Order of the ranks: "block" fills one host after the other, "cyclic" assigns ranks to the hosts in turn."""

    calibration: Calibration | None = field(default=None, repr=False)
    """Measured costs of a machine: its links, the task's gradients, ranks that share cores. See `pl.calibrate`."""

    measured: MeasuredTimes | None = field(default=None, repr=False, compare=False)
    """Measured times that several runs share. None to measure in each run."""
    known: KnownModel | None = field(default=None, repr=False, compare=False)
    """Shapes and prices that several runs share. They compute nothing. None to derive them in each run."""

    def __post_init__(self) -> None:
        check_workers(self.workers, at_most=MAX_WORKERS)
        check_threads(self.threads)
        if self.math not in MATHS:
            raise UnknownNameError("math", str(self.math), MATHS)
        check_compute(self.compute)
        self._settle_device()
        object.__setattr__(self, "link", settled_link(self))
        if self.compute is None and self.device is None and self.math == "none" and not knows_gradients(self):
            remedy = "write compute=pl.times.Constant(0.01), say, or device=pl.devices.A100"
            raise ConfigurationError("compute", 'must be given with math="none"', None, remedy)
        remedy = 'write pl.Link("10Gbps", "50us")'
        if self.inside is not None and not isinstance(self.inside, Link):
            raise ConfigurationError("inside", "must be a pl.Link", self.inside, remedy)
        object.__setattr__(self, "hosts", check_hosts(self.hosts, self.workers))
        if isinstance(self.link, str) and self.hosts != 1:
            raise ConfigurationError("hosts", f'must be 1 with link="{self.link}"', self.hosts)
        self.fabric  # noqa: B018 (it raises an error for values that contradict each other)
        slow_links(self.slow_links, self.link)
        self.stragglers.check(self.workers)
        check_min_workers(self.min_workers, self.workers)
        check_restart(self.restart, self.min_workers)
        check_faults(self.faults)
        object.__setattr__(self, "faults", tuple(self.faults))

    @classmethod
    def of(cls, described: ClusterDescription, *, workers: int | None = None, **changes: Any) -> Simulated:
        """Return a simulation of a described cluster (`pl.load_cluster`). `workers` uses its first ranks only.

        `changes` are other arguments. With `compute`, the device of the description is not used.
        """
        given = described.arguments(workers) | changes
        device = described.device if given["compute"] is None else None
        return cls(**{"device": device, **given})

    def _settle_device(self) -> None:
        if self.device is None:
            return
        object.__setattr__(self, "device", device_of(self.device))
        if self.compute is not None:
            remedy = "device and compute both set the seconds: omit one of them"
            raise ConfigurationError("device", "must not be given together with compute", self.device, remedy)

    @property
    def memory(self) -> Link:
        """Link between ranks of one host."""
        return Link("100Gbps", "1us") if self.inside is None else self.inside

    @property
    def measures(self) -> bool:
        """Whether the seconds of gradients are measured on this machine when a run begins."""
        return self.compute is None and self.device is None and not knows_gradients(self)

    @property
    def between(self) -> Link:
        """Link between ranks that are not on one host; with one host, between all ranks."""
        found = calibrated_link(self)
        if found is None and isinstance(self.link, Link) and (self.hosts != 1 or self.inside is None):
            return self.link
        return self.memory if found is None else found

    @property
    def fabric(self) -> Fabric:
        return Fabric(
            hosts=self.hosts,
            link=self.between,
            inside=self.memory,
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
        # A strategy that uses fewer ranks ignores faults of the others.
        check_faults_fit(self.faults, max(job.ranks, self.workers), job.steps)
        check_joins(self.faults, job)
        remedy = 'write link=pl.Link("10Gbps", "50us")'
        check_cuts(self.faults, is_network=self.link != SHARED_MEMORY, remedy=remedy)
        check_ranks(slow_links(self.slow_links, self.link), max(job.ranks, self.workers))
        request_trial(job, job.workers - 1)
        threads = threads_of(self, job.workers)
        # The ranks compute in the caller's process, and must not change the state of its random generators.
        with computing_threads(threads), gc_paused(), seeded(job.seed):
            return Simulation(self, job).run(progress, consult)

    def __str__(self) -> str:
        words = [f"{self.workers} simulated workers", link_words(self)]
        compute = f"compute {self.compute}" if self.compute else "compute as measured here"
        if self.calibration is not None and self.compute is None:
            compute = self.calibration.name
        words.append(compute if self.device is None else f"each {self.device}")
        words += self.fabric.words
        words += slow_links_in_words(slow_links(self.slow_links, self.link))
        words += self.stragglers.words()
        words += thread_words(self.threads)
        words += min_workers_words(self.min_workers, restart=self.restart)
        words += [str(fault) for fault in self.faults]
        return ", ".join(words)
