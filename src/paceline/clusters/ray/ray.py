"""Workers on the hosts of a Ray cluster, each a Ray actor; tensors go between them over Paceline's own links."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.clusters.checks import (
    check_deadline,
    check_device_word,
    check_real_stragglers,
    check_threads,
    check_workers,
    device_words,
    thread_words,
)
from paceline.clusters.job import Consult, Job
from paceline.clusters.outcome import Outcome
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.errors import ConfigurationError
from paceline.run import Progress

if TYPE_CHECKING:
    from paceline.clusters.ray.held import HeldRay

__all__ = ["Ray"]

MAX_RANKS = 256


@dataclass(frozen=True, slots=True)
class Ray:
    """Worker processes that Ray places, starts and ends: an actor a rank, all in one placement group.

    Ranks of one host talk through shared memory, hosts over TCP. A connection that `ray.init` has made already is used,
    and left as it is.
    """

    address: str | None = None
    """None: a private Ray on this machine, for this run alone. "auto": the cluster of this machine. Or "host:port"."""
    workers: int = 4
    servers: int | None = None
    """How many ranks serve. It is the strategy that says so; what is given here has to agree with it."""
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    """What each rank takes of its host, in Ray's words."""
    spread: bool = True
    """Whether the ranks are spread over as many hosts as possible, or packed on as few."""
    encrypt: bool | None = None
    """Whether messages between ranks are encrypted. None: if the ranks are on several hosts."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """How many times as long a rank computes."""
    delay: Times | Mapping[int, Times] | None = None
    """What each computation takes longer: of all ranks, or by rank."""
    deadline_s: float = 60.0
    """How long a rank waits for another, and the run for Ray's resources, before it ends with an error."""
    ports: range | None = None
    """The ports at which ranks and driver may listen. None: any that is free."""
    threads: int | None = None
    """With how many threads each rank computes, which can change the last bits of sums. None: a share of the cores."""
    device: str | None = None
    """Where ranks compute: as for `pl.Local`. None: if `resources` has a GPU on the one that Ray gives, else on the
    processor."""

    def __post_init__(self) -> None:
        _check_address(self.address)
        check_workers(self.workers, at_most=MAX_RANKS - 1)
        _check_resources(self.resources)
        _check_ports(self.ports)
        if self.servers is not None and (not isinstance(self.servers, int) or self.servers < 0):
            remedy = "leave it out: the strategy says how many it needs"
            raise ConfigurationError("servers", "must be a whole number of at least 0", self.servers, remedy)
        check_deadline(self.deadline_s)
        check_threads(self.threads)
        check_device_word(self.device_word, elsewhere=True)
        check_real_stragglers(self.stragglers, self.workers)

    @property
    def device_word(self) -> str:
        """What each rank is told."""
        if self.device is not None:
            return self.device
        return "gpu" if "GPU" in self.resources else "cpu"

    @property
    def stragglers(self) -> Stragglers:
        return Stragglers(slow=self.slow, delay=self.delay)

    def run(
        self,
        job: Job,
        progress: Callable[[Progress], None] | None = None,
        consult: Consult | None = None,
    ) -> list[Outcome]:
        with self.hold() as held:
            return held.run(job, progress, consult)

    def hold(self) -> HeldRay:
        """For several runs, `with pl.Ray(…).hold() as cluster`: its processes stay until the block ends.

        Only the first run then waits for processes to start. What the user's code changes in its process, such as a
        default of torch's, the next run finds changed.
        """
        from paceline.clusters.ray.held import HeldRay

        return HeldRay(self)

    def check(self, job: Job) -> None:
        """Refuse a job that does not fit what was said about servers."""
        servers = job.ranks - job.workers
        if self.servers is not None and self.servers != servers:
            remedy = f"leave it out, or choose it where the strategy does ({job.name}:servers=…)"
            raise ConfigurationError("servers", f"must be {servers} for this strategy", self.servers, remedy)

    def __str__(self) -> str:
        where = "a private Ray" if self.address is None else f"Ray ({self.address})"
        words = [f"{self.workers} workers on {where}"]
        if self.encrypt is not None:
            words.append("encrypted" if self.encrypt else "not encrypted")
        words += [f"rank {rank} {factor:g}x as slow" for rank, factor in sorted(self.slow.items())]
        if self.delay is not None:
            words.append(f"delay {self.delay}")
        words += [*thread_words(self.threads), *device_words(self.device_word)]
        return ", ".join(words)


def _check_address(address: object) -> None:
    if address is None or address == "auto":
        return
    bound = 'must be None, "auto" or "host:port"'
    if isinstance(address, str) and address.startswith("ray://"):
        remedy = (
            "ranks talk to this process: run it on a host of the cluster, or by `ray job submit`, with auto"
        )
        raise ConfigurationError("address", bound, address, remedy)
    found = (
        re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})", address)
        if isinstance(address, str)
        else None
    )
    if found is None or not 1 <= int(found[2]) <= 65535:
        remedy = "`ray start --head` prints it; its port is 6379 by default"
        raise ConfigurationError("address", bound, address, remedy)


def _check_resources(resources: object) -> None:
    remedy = 'such as {"CPU": 1}, or {"CPU": 2, "GPU": 1}: what each rank takes'
    if not isinstance(resources, Mapping) or not resources:
        raise ConfigurationError("resources", "must be a dictionary of Ray's resources", resources, remedy)
    for name, amount in resources.items():
        if not isinstance(name, str) or not name:
            raise ConfigurationError("resources", "must have names as keys", name, remedy)
        if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not 0 < amount < math.inf:
            raise ConfigurationError(f"resources[{name!r}]", "must be above 0", amount, remedy)


def _check_ports(ports: object) -> None:
    if ports is None:
        return
    if not isinstance(ports, range) or not ports or not all(1 <= p <= 65535 for p in (ports[0], ports[-1])):
        remedy = "such as range(20000, 20100), open between the hosts"
        raise ConfigurationError("ports", "must be a range of ports, from 1 to 65535", ports, remedy)
