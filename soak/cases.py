"""The random cases. Each is generated from one number, and the number repeats it. This module does not need torch."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.strategies import parse
from paceline.strategies.registry.descriptions import IN_PIECES
from soak.specs import NARROWEST, WORDS, make_spec

CLUSTERS = {"memory": 50, "tcp": 15, "tcp-encrypted": 8, "emulated": 15, "ray": 3}
"""Relative frequency of each cluster. Ray takes seconds to start, and minutes on busy cores."""
GROUP = 20
"""Number of consecutive cases that share a driver process and its fork server."""

ASYNCHRONOUS = frozenset({"k-sync", "k-batch-sync", "async", "k-async", "k-batch-async", "ssp", "hogwild"})
LOCAL = frozenset({"decentralized", "local-sgd", "diloco", "fedavg", "fedprox", "fedavgm", "fedadam"})
FEDERATED = frozenset({"fedavg", "fedprox", "fedavgm", "fedadam"})
SUMMING_PIECES = frozenset({"tensor", "zero", "hybrid"})
CHOOSING_ALGORITHMS = frozenset({"all-reduce", "local-sgd", "diloco"})
"""Strategies that sum in shared memory with `algorithm=auto`, if all ranks share memory."""
LINKS = (("1Gbps", "50us"), ("1Gbps", "1ms"), ("10Gbps", "200us"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A fault of one rank."""

    kind: str
    """kill; pause (shorter than the deadline); stop (longer than the deadline)."""
    rank: int
    since: str
    """Start of `after_s`: launch (all processes exist) or running (the first step is done)."""
    after_s: float
    seconds: float = 0.0
    """Duration of a pause or a stop."""


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
    """Units of each hidden layer of the model. A block has about 7 parameters per unit."""
    depth: int = 1
    """Blocks of the model. Each has one hidden layer."""
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
    """Additional time of every computation: a distribution and its mean in seconds."""
    deadline_s: float = 60.0
    fault: Fault | None = None
    busy: int = 0
    """Number of other processes that keep the cores busy."""
    one_core: bool = False

    @property
    def word(self) -> str:
        return self.spec.partition(":")[0]

    @property
    def roles(self) -> Sequence[str]:
        return parse(self.spec).roles(self.workers)

    @property
    def is_synchronous(self) -> bool:
        """Whether the run must give the weights of `single`."""
        return self.word not in ASYNCHRONOUS | LOCAL

    @property
    def is_reproducible(self) -> bool:
        """Whether the weights depend only on the task and the seed."""
        return self.word not in ASYNCHRONOUS and "mode=async" not in self.spec

    @property
    def uses_windows(self) -> bool:
        """Whether the run sums in shared memory, so that no messages are counted."""
        if self.word in SUMMING_PIECES:
            return self.cluster in ("memory", "ray")
        if self.word not in CHOOSING_ALGORITHMS:
            return False
        automatic = "algorithm=" not in self.spec or "algorithm=auto" in self.spec
        return "algorithm=shared" in self.spec or (automatic and self.cluster in ("memory", "ray"))

    def describe(self) -> str:
        """Return all settings that differ from the default, one per line."""
        shown = [
            f"{item.name}: {getattr(self, item.name)}"
            for item in dataclasses.fields(self)
            if item.default is dataclasses.MISSING or getattr(self, item.name) != item.default
        ]
        return "\n".join(line for line in shown if line != "slow: {}")


def fuzz_of(seed: int) -> int | None:
    """Return PACELINE_FUZZ for the group of a case. None for two thirds of the groups."""
    group = seed // GROUP
    return group if random.Random(f"fuzz {group}").random() < 1 / 3 else None


def make_case(seed: int) -> Case:
    """Return the case of this number. It is always the same."""
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
        deadline_s=240.0 if cluster == "ray" else 60.0,  # also the start timeout of Ray's processes
    )
    case = _with_optimizer(rng, case)
    if rng.random() < 0.3:
        case = _with_batch_norm(rng, case)
    case = _with_stragglers(rng, case)
    if cluster != "ray" and rng.random() < 0.35:
        case = _with_fault(rng, case)
    return _within_time(case)


def _within_time(case: Case) -> Case:
    """Limit the time of federated cases: a client's round has up to a hundred gradients, which may take seconds."""
    is_long = case.word in FEDERATED and case.hidden > 20_000
    return dataclasses.replace(case, steps=min(case.steps, 4)) if is_long else case


def _hidden(rng: random.Random) -> int:
    """Return a size below or above the lending threshold of 64 KiB, and sometimes above a ring's 4 MiB."""
    kind = rng.random()
    if kind < 0.5:
        return rng.randint(NARROWEST, 400)
    return rng.randint(2_000, 20_000) if kind < 0.95 else rng.randint(80_000, 120_000)


def _with_optimizer(rng: random.Random, case: Case) -> Case:
    """Choose the optimizer. Adam only for small models: it divides by gradients, which amplifies rounding errors."""
    names = ["sgd", "momentum", "adam"] if case.hidden <= 400 else ["sgd", "momentum"]
    clip = 0.5 if rng.random() < 0.15 else None
    return dataclasses.replace(case, optimizer=rng.choice(names), clip_norm=clip)


def _with_batch_norm(rng: random.Random, case: Case) -> Case:
    """Add BatchNorm, if no slice, client batch or micro-batch has a single sample, which BatchNorm refuses."""
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
    """Add a fault.

    Such a run lasts at least a second, so that the fault hits it. Federated rounds are long anyway.
    """
    kind = rng.choice(["kill"] * 5 + ["pause"] * 5 + ["stop"])
    since = rng.choice(["launch", "running", "running"])
    seconds = {"kill": 0.0, "pause": rng.choice([0.02, 0.2, 1.0]), "stop": 0.0}[kind]
    rank = rng.randrange(len(case.roles))
    fault = Fault(kind=kind, rank=rank, since=since, after_s=round(rng.random() * 0.8, 3), seconds=seconds)
    alone = len(case.roles) == 1
    if kind == "stop":
        # Processes have a minute to start, independent of the deadline. No rank waits for a single rank.
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
