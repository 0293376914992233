"""What is tried: each case is made from one number, so that the number alone repeats it. Nothing here needs torch."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.strategies import parse
from paceline.strategies.pages import IN_PIECES
from soak.specs import NARROWEST, WORDS, make_spec

__all__ = ["CHOOSING_ALGORITHMS", "CLUSTERS", "GROUP", "Case", "Fault", "fuzz_of", "make_case"]

CLUSTERS = {"memory": 50, "tcp": 15, "tcp-encrypted": 8, "emulated": 15, "ray": 3}
"""How often each comes up. Ray takes seconds to start, and minutes where cores are busy."""
GROUP = 20
"""So many cases, whose numbers follow each other, share a driver process and its fork server."""

ASYNCHRONOUS = frozenset({"k-sync", "k-batch-sync", "async", "k-async", "k-batch-async", "ssp", "hogwild"})
LOCAL = frozenset({"decentralized", "local-sgd", "diloco", "fedavg", "fedprox", "fedavgm", "fedadam"})
FEDERATED = frozenset({"fedavg", "fedprox", "fedavgm", "fedadam"})
SUMMING_PIECES = frozenset({"tensor", "zero", "hybrid"})
CHOOSING_ALGORITHMS = frozenset({"all-reduce", "local-sgd", "diloco"})
"""Strategies that sum by memory where all ranks have one, if they may choose; `algorithm=shared` says so."""
LINKS = (("1Gbps", "50us"), ("1Gbps", "1ms"), ("10Gbps", "200us"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What happens to one rank."""

    kind: str
    """kill; pause (shorter than the deadline); stop (longer than it)."""
    rank: int
    since: str
    """From when on `after_s` counts: launch (all processes exist) or running (the first step is done)."""
    after_s: float
    seconds: float = 0.0
    """How long a pause or a stop lasts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One run."""

    seed: int
    spec: str
    workers: int
    cluster: str
    link: tuple[str, str] = ("", "")
    """Bandwidth and latency of an emulated link."""
    hidden: int
    """Units of each hidden layer of the model: a block has about 7 parameters a unit."""
    depth: int = 1
    """Blocks of the model: one has a hidden layer."""
    dtype: str = "float64"
    batch_norm: bool = False
    optimizer: str = "sgd"
    clip_norm: float | None = None
    evaluates: bool = False
    samples: int
    batch_size: int
    steps: int
    slow: dict[int, float] = field(default_factory=dict)
    delay: tuple[str, float] = ("", 0.0)
    """What every computation takes longer: a distribution and its mean in seconds."""
    deadline_s: float = 60.0
    fault: Fault | None = None
    busy: int = 0
    """Processes beside the run that do nothing but use the cores."""
    one_core: bool = False

    @property
    def word(self) -> str:
        return self.spec.partition(":")[0]

    @property
    def roles(self) -> Sequence[str]:
        return parse(self.spec).roles(self.workers)

    @property
    def is_synchronous(self) -> bool:
        """Whether it must give the weights of `single`."""
        return self.word not in ASYNCHRONOUS | LOCAL

    @property
    def is_reproducible(self) -> bool:
        """Whether its weights depend on nothing but task and seed."""
        return self.word not in ASYNCHRONOUS and "mode=async" not in self.spec

    @property
    def uses_windows(self) -> bool:
        """Whether it sums in memory that all ranks share: no messages are counted then."""
        if self.word in SUMMING_PIECES:
            return self.cluster in ("memory", "ray")
        if self.word not in CHOOSING_ALGORITHMS:
            return False
        automatic = "algorithm=" not in self.spec or "algorithm=auto" in self.spec
        return "algorithm=shared" in self.spec or (automatic and self.cluster in ("memory", "ray"))

    def describe(self) -> str:
        """All that differs from the default, a line each."""
        shown = [
            f"{item.name}: {getattr(self, item.name)}"
            for item in dataclasses.fields(self)
            if item.default is dataclasses.MISSING or getattr(self, item.name) != item.default
        ]
        return "\n".join(line for line in shown if line != "slow: {}")


def fuzz_of(seed: int) -> int | None:
    """PACELINE_FUZZ for the group of a case, which a third of the groups have. None: without."""
    group = seed // GROUP
    return group if random.Random(f"fuzz {group}").random() < 1 / 3 else None


def make_case(seed: int) -> Case:
    """The case of this number, always the same one."""
    rng = random.Random(f"case {seed}")
    workers = rng.choice([1, 2, 2, 3, 3, 4, 5, 6])
    word = rng.choice(WORDS)
    cluster = rng.choices([*CLUSTERS], weights=[*CLUSTERS.values()])[0]
    if word == "hogwild" and cluster not in ("memory", "ray"):
        cluster = "memory"
    spec = make_spec(rng, word, workers, one_host=cluster == "memory")
    case = Case(
        seed=seed,
        spec=spec,
        workers=workers,
        cluster=cluster,
        link=rng.choice(LINKS) if cluster == "emulated" else ("", ""),
        hidden=_hidden(rng),
        depth=rng.choice([1, 2, 4]) if word in IN_PIECES else 1,
        dtype=rng.choice(["float64", "float64", "float32"]),
        samples=rng.randint(20, 60),
        batch_size=rng.randint(2 * workers, 24),
        steps=rng.randint(3, 30),
        evaluates=rng.random() < 0.25,
        busy=0 if cluster == "ray" else rng.choice([0] * 8 + [1, 4]),
        one_core=cluster != "ray" and rng.random() < 0.1,
        deadline_s=240.0 if cluster == "ray" else 60.0,  # it is also how long Ray's processes have to start
    )
    case = _with_optimizer(rng, case)
    if rng.random() < 0.3:
        case = _with_batch_norm(rng, case)
    case = _with_stragglers(rng, case)
    if cluster != "ray" and rng.random() < 0.35:
        case = _with_fault(rng, case)
    return _within_time(case)


def _within_time(case: Case) -> Case:
    """A round of a client is up to a hundred gradients: of large models, and four times as slow, that takes seconds."""
    is_long = case.word in FEDERATED and case.hidden > 20_000
    return dataclasses.replace(case, steps=min(case.steps, 4)) if is_long else case


def _hidden(rng: random.Random) -> int:
    """Below the lending threshold of 64 KiB, above it, and now and then above a ring's 4 MiB."""
    kind = rng.random()
    if kind < 0.5:
        return rng.randint(NARROWEST, 400)
    return rng.randint(2_000, 20_000) if kind < 0.95 else rng.randint(80_000, 120_000)


def _with_optimizer(rng: random.Random, case: Case) -> Case:
    """Adam for small models alone: it divides by gradients, and so makes much of their last places."""
    names = ["sgd", "momentum", "adam"] if case.hidden <= 400 else ["sgd", "momentum"]
    clip = 0.5 if rng.random() < 0.15 else None
    return dataclasses.replace(case, optimizer=rng.choice(names), clip_norm=clip)


def _with_batch_norm(rng: random.Random, case: Case) -> Case:
    """No slice and no client's batch may be of one sample: BatchNorm refuses it. Nor may a micro-batch be."""
    if case.word in IN_PIECES:
        return case
    spec = case.spec
    if case.word in FEDERATED:
        spec = re.sub(r"\bbatch=\d+,?", "", spec).rstrip(",:")
    samples = case.workers * case.batch_size * 2
    return dataclasses.replace(case, spec=spec, batch_norm=True, samples=samples)


def _with_stragglers(rng: random.Random, case: Case) -> Case:
    slow = {rng.randrange(case.workers): float(rng.choice([2, 4]))} if rng.random() < 0.25 else {}
    if case.word == "single":
        slow = {}
    delay = rng.choice([("", 0.0)] * 4 + [("exponential", 0.002), ("constant", 0.005), ("exponential", 0.01)])
    return dataclasses.replace(case, slow=slow, delay=delay)


def _with_fault(rng: random.Random, case: Case) -> Case:
    """A run with a fault lasts a second or more, so that the fault meets it. A federated round is many gradients."""
    kind = rng.choice(["kill"] * 5 + ["pause"] * 5 + ["stop"])
    since = rng.choice(["launch", "running", "running"])
    seconds = {"kill": 0.0, "pause": rng.choice([0.02, 0.2, 1.0]), "stop": 0.0}[kind]
    rank = rng.randrange(len(case.roles))
    fault = Fault(kind=kind, rank=rank, since=since, after_s=round(rng.random() * 0.8, 3), seconds=seconds)
    alone = len(case.roles) == 1
    if kind == "stop":
        # Processes have a minute to start, whatever the deadline. Nobody waits for a rank that is alone.
        fault = dataclasses.replace(fault, since="running", seconds=2.0 if alone else 40.0)
    steps = rng.randint(60, 100) if case.hidden <= 20_000 and case.word not in FEDERATED else 20
    deadline_s, busy = (5.0, 0) if kind == "stop" else (60.0, case.busy)
    return dataclasses.replace(
        case,
        steps=steps,
        delay=("constant", 0.02),
        slow={},
        deadline_s=deadline_s,
        busy=busy,
        fault=fault,
    )
