"""Workers in the barrier tasks of a Spark job. Tensors use Paceline's own links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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

MAX_RANKS = 256


@dataclass(frozen=True, slots=True)
class Spark(Cluster):
    """Worker processes that Spark starts and ends: all ranks are tasks of one barrier stage.

    Ranks of one host communicate through shared memory, hosts over TCP. An active SparkContext is used and left open.
    """

    master: str | None = None
    """URL of the Spark master. None for the active SparkContext, or for a private Spark on this machine if there is
    none."""
    workers: int = 4
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark properties of a context that the run creates, such as {"spark.executor.memory": "4g"}."""
    encrypt: bool | None = None
    """Whether messages between ranks are encrypted. None to encrypt if the run uses several hosts."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Slowdown factor of the computations, by rank."""
    delay: Times | Mapping[int, Times] | None = None
    """Additional time of each computation: one distribution for all ranks, or one for each rank."""
    deadline_s: float = 60.0
    """Seconds before the run ends with an error, if a rank waits for another rank or the run waits for executors."""
    ports: range | None = None
    """Ports on which ranks and driver may listen. None for any free port."""
    threads: int | None = None
    """Compute threads of each rank. They can change the last bits of sums. None for a share of the cores."""
    device: str = "cpu"
    """Compute device, as for `pl.Local`."""

    def __post_init__(self) -> None:
        _check_master(self.master)
        _check_conf(self.conf)
        check_workers(self.workers, at_most=MAX_RANKS - 1)
        check_flag("encrypt", self.encrypt, optional=True)
        check_deadline(self.deadline_s)
        check_ports(self.ports)
        check_threads(self.threads)
        check_device_word(self.device, elsewhere=True)
        check_real_stragglers(self.stragglers, self.workers)

    @property
    def device_word(self) -> str:
        """Device name that each rank receives."""
        return self.device

    @property
    def stragglers(self) -> Stragglers:
        return Stragglers(slow=self.slow, delay=self.delay)

    def run(
        self,
        job: Job,
        progress: Callable[[Progress], None] | None = None,
        consult: Consult | None = None,
    ) -> list[Outcome]:
        from paceline.clusters.spark.connection import connected
        from paceline.clusters.spark.driver import SparkRun

        with connected(self.master, job.ranks, self.conf, self.deadline_s) as context:
            return SparkRun(self, job, context).work(progress, consult)

    def __str__(self) -> str:
        words = [f"{self.workers} workers on Spark" + (f" ({self.master})" if self.master else "")]
        if self.encrypt is not None:
            words.append("encrypted" if self.encrypt else "not encrypted")
        words += self.stragglers.words()
        return ", ".join([*words, *thread_words(self.threads), *device_words(self.device)])


def _check_master(master: object) -> None:
    if master is not None and (not isinstance(master, str) or not master or master.isspace()):
        remedy = "write spark://host:7077, local-cluster[2,1,1024] or yarn, or omit it"
        raise ConfigurationError("master", "must be None or the URL of a Spark master", master, remedy)


def _check_conf(conf: object) -> None:
    texts = isinstance(conf, Mapping) and all(isinstance(word, str) for pair in conf.items() for word in pair)
    if not texts:
        remedy = 'write {"spark.executor.memory": "4g"}'
        raise ConfigurationError("conf", "must be a dictionary of Spark properties, texts only", conf, remedy)
