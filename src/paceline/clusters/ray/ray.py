"""Workers on the hosts of a Ray cluster. Each one is a Ray actor; tensors use Paceline's own links."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.clusters.base.checks import (
    check_deadline,
    check_device_word,
    check_flag,
    check_ports,
    check_real_stragglers,
    check_threads,
    check_workers,
    device_words,
    thread_words,
)
from paceline.clusters.base.job import Cluster, Consult, Job
from paceline.clusters.base.outcome import Outcome
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.errors import ConfigurationError
from paceline.runs.run import Progress

if TYPE_CHECKING:
    from paceline.clusters.ray.held import HeldRay

MAX_RANKS = 256


@dataclass(frozen=True, slots=True)
class Ray(Cluster):
    """Worker processes that Ray places, starts and ends: one actor for each rank, all in one placement group.

    Ranks of one host communicate through shared memory, hosts over TCP. An existing connection by `ray.init` is used
    and left open.
    """

    address: str | None = None
    """Address of the cluster: "host:port", or "auto" for this machine's cluster. None for a private Ray for each
    run."""
    workers: int = 4
    servers: int | None = None
    """Number of server ranks. The strategy decides it; a value given here must agree. None to accept any."""
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    """Resources of each rank on its host, by Ray's names."""
    spread: bool = True
    """Whether the ranks are spread over as many hosts as possible, or packed on as few."""
    encrypt: bool | None = None
    """Whether messages between ranks are encrypted. None to encrypt if the run uses several hosts."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Slowdown factor of the computations, by rank."""
    delay: Times | Mapping[int, Times] | None = None
    """Additional time of each computation: one distribution for all ranks, or one for each rank."""
    deadline_s: float = 60.0
    """Seconds before the run ends with an error, if a rank waits for another rank or the run waits for Ray's
    resources."""
    ports: range | None = None
    """Ports on which ranks and driver may listen. None for any free port."""
    threads: int | None = None
    """Compute threads of each rank. They can change the last bits of sums. None for a share of the cores."""
    device: str | None = None
    """Compute device, as for `pl.Local`. None for the GPU that Ray assigns if `resources` has one, else the CPU."""

    def __post_init__(self) -> None:
        _check_address(self.address)
        check_workers(self.workers, at_most=MAX_RANKS - 1)
        _check_resources(self.resources)
        check_ports(self.ports)
        check_flag("spread", self.spread)
        check_flag("encrypt", self.encrypt, optional=True)
        counts = isinstance(self.servers, int) and not isinstance(self.servers, bool)
        if self.servers is not None and (not counts or self.servers < 0):
            remedy = "omit it: the strategy determines the number"
            raise ConfigurationError("servers", "must be a whole number of at least 0", self.servers, remedy)
        check_deadline(self.deadline_s)
        check_threads(self.threads)
        check_device_word(self.device_word, elsewhere=True)
        check_real_stragglers(self.stragglers, self.workers)

    @property
    def device_word(self) -> str:
        """Device name that each rank receives."""
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
        """Hold the processes for several runs: `with pl.Ray(…).hold() as cluster`. They last until the block ends.

        Only the first run waits for processes to start. Changes that the user's code makes in its process, such as a
        default of torch, persist in the next run.
        """
        from paceline.clusters.ray.held import HeldRay

        return HeldRay(self)

    def check(self, job: Job) -> None:
        """Refuse a job with a different number of servers than `servers`."""
        servers = job.ranks - job.workers
        if self.servers is not None and self.servers != servers:
            remedy = f"omit it, or set it in the strategy ({job.name}:servers=…)"
            raise ConfigurationError("servers", f"must be {servers} for this strategy", self.servers, remedy)

    def __str__(self) -> str:
        where = "a private Ray" if self.address is None else f"Ray ({self.address})"
        words = [f"{self.workers} workers on {where}"]
        if self.encrypt is not None:
            words.append("encrypted" if self.encrypt else "not encrypted")
        words += self.stragglers.words()
        words += [*thread_words(self.threads), *device_words(self.device_word)]
        return ", ".join(words)


def _check_address(address: object) -> None:
    if address is None or address == "auto":
        return
    bound = 'must be None, "auto" or "host:port"'
    if isinstance(address, str) and address.startswith("ray://"):
        remedy = "ranks connect to this process: run it on a host of the cluster, or with `ray job submit`, with auto"
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
    remedy = 'resources of each rank, such as {"CPU": 1}, or {"CPU": 2, "GPU": 1}'
    if not isinstance(resources, Mapping) or not resources:
        raise ConfigurationError("resources", "must be a dictionary of Ray's resources", resources, remedy)
    for name, amount in resources.items():
        if not isinstance(name, str) or not name:
            raise ConfigurationError("resources", "must have names as keys", name, remedy)
        if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not 0 < amount < math.inf:
            raise ConfigurationError(f"resources[{name!r}]", "must be above 0", amount, remedy)
