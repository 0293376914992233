"""Random runs that lose ranks, and what holds of each of them."""

import dataclasses
import functools
import itertools
import random

import pytest
import torch
from tasks import a_task, samples

import paceline as pl
from paceline.faults import Kill, Pause
from paceline.testing.tasks import Tied

__all__ = [
    "CHANGES",
    "EXACT",
    "FREE",
    "METRIC",
    "check_against_single",
    "check_members",
    "random_case",
    "random_case_by_itself",
    "random_case_in_parts",
    "random_processes",
    "single",
]


def _momentum(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def _adam(params):
    return torch.optim.Adam(params, lr=0.01)


def _decay(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def _plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.1)


def _grouped(params):
    given = list(params)
    biases = {"params": [each for each in given if each.ndim == 1], "lr": 0.2}
    return torch.optim.AdamW([{"params": [each for each in given if each.ndim > 1]}, biases], lr=0.01)


def _layerwise(params):
    return pl.optim.LARS(params, lr=0.5, momentum=0.9)


def _tied():
    return Tied().double()


CHANGES = (
    {},
    {"optimizer": _momentum, "batch_size": 5},
    {"optimizer": _adam},
    {"optimizer": _adam, "clip_norm": 0.1, "schedule": _decay},
    {"optimizer": _momentum, "test": samples(12), "metric": "mse"},
    {"optimizer": _grouped, "schedule": _plateau, "test": samples(12), "metric": "mse", "better": "lower"},
    {"optimizer": _momentum, "accumulate": 2, "model": _tied},
    {"optimizer": _layerwise, "clip_norm": 0.5},
)
_LINEAR = (0, 1, 4)
_ALL = range(len(CHANGES))
METRIC = 5
"""Task whose schedule depends on the metric."""
_WITHOUT_METRIC = tuple(number for number in _ALL if number != METRIC)
"""Tasks whose update is linear in the gradient."""
_MOMENTUM = "parameters+momentum"


def _all_reduce(rng):
    return f"all-reduce:algorithm={rng.choice(MESSAGES)}{rng.choice(['', ',bucket_mb=0.0001'])}"


EXACT = {
    "all-reduce": (_all_reduce, _ALL),
    "map-reduce": (lambda _: "map-reduce", _ALL),
    "sync": (lambda rng: f"sync:placement={rng.choice(['servers', 'worker'])}", _ALL),
    "central-storage": (
        lambda rng: f"central-storage:placement={rng.choice(['servers', 'worker'])}",
        _ALL,
    ),
    "local-sgd": (lambda _: f"local-sgd:period=1,averages={_MOMENTUM}", _LINEAR),
    "post-local": (lambda _: "local-sgd:period=2,post_local=100", _WITHOUT_METRIC),
    "diloco": (lambda _: "diloco:period=1,outer_lr=1,outer_momentum=0", (0,)),
}
"""Strategies with the weights of `single` whatever ranks are lost: a function of a random generator that returns a
variant, and the numbers of tasks."""
FREE = (
    "k-sync:k=1",
    "k-sync:placement=worker",
    "k-batch-sync:k=3",
    "async",
    "async:placement=worker",
    "k-async:k=1",
    "k-batch-async:k=2",
    "ssp",
    "local-sgd:period=3",
    "diloco:period=4",
    "diloco:period=4,fragments=2,delay=1",
)
"""Strategies whose weights depend on which workers are quicker, or on how many there are."""
IN_PARTS = {
    "zero:stage=1": 1,
    "zero:stage=2": 1,
    "zero:stage=3": 1,
    "layers": 1,
    "pipeline": 1,
    "pipeline:stages=2": 2,
    "pipeline:order=zb-h1": 1,
    "tensor": 1,
    "tensor:size=2": 2,
    "hybrid:pipeline=2": 2,
    "hybrid:pipeline=2,zero=1": 2,
    "hybrid:tensor=2,zero=3": 2,
    "hybrid:zero=2": 1,
}
"""Strategies that go back to a checkpoint, with the fewest workers that can continue."""
BY_THEMSELVES = ("decentralized", "decentralized:mode=async", "fedavg", "fedprox", "fedavgm", "fedadam")
"""Strategies whose programs continue without lost workers. The reporter, rank 0 or the server, may not be lost."""
LINKS = (pl.Link("1Mbps", "1ms"), pl.Link("100kbps", "0.1ms"), pl.Link("10Gbps", "50us"), pl.Link.ideal())
MESSAGES = [name for name in pl.collectives.ALGORITHMS if name not in ("shared", "native")]


@functools.cache
def single(number, steps):
    cluster = pl.Simulated(workers=1, compute=pl.times.Constant(0.01))
    return pl.train(a_task(**CHANGES[number]), "single", cluster, steps=steps)


def random_case(seed, *, free=False):
    """Return the number of a task, a strategy, a simulated cluster with faults, and the steps."""
    rng = random.Random(seed)
    workers, steps = rng.randint(2, 6), rng.randint(1, 12)
    make, numbers = EXACT[rng.choice(list(EXACT))]
    spec, number = make(rng), rng.choice(numbers)
    if free:
        spec, number = rng.choice(FREE), rng.choice(_WITHOUT_METRIC)
    first = int("placement=worker" in spec)  # the server
    long_s = steps * 0.03
    faults = [
        Kill(rank, at=rng.random() * long_s) if rng.random() < 0.7 else Kill(rank, step=rng.randrange(steps))
        for rank in rng.sample(range(first, workers), rng.randint(1, workers - 1))
    ]
    if rng.random() < 0.3:
        faults.append(Pause(rng.randrange(workers), at=rng.random() * long_s, seconds=rng.random() * 0.05))
    restart = rng.random() < 0.4
    if restart:
        faults += [Kill(rng.randrange(first, workers), at=rng.random() * long_s) for _ in range(3)]
    compute = rng.choice([pl.times.Exponential(0.01), pl.times.Constant(0.01), pl.times.Exponential(0.001)])
    cluster = pl.Simulated(
        workers=workers,
        min_workers=1,
        restart=restart,
        compute=compute,
        link=rng.choice(LINKS),
        faults=faults,
    )
    return number, spec, cluster, steps


def random_case_by_itself(seed):
    """The same for a strategy whose programs continue by themselves, without joins."""
    number, _, machines, steps = random_case(seed, free=True)
    spec = random.Random(seed).choice(BY_THEMSELVES)
    faults = [fault for fault in machines.faults if fault.rank > 0]
    return number, spec, dataclasses.replace(machines, faults=faults, restart=False), steps


def random_case_in_parts(seed):
    """The same for a strategy that goes back to the newest checkpoint, with the interval of checkpoints."""
    rng = random.Random(seed)
    spec = rng.choice(list(IN_PARTS))
    fewest, workers, steps = IN_PARTS[spec], rng.choice([2, 4]), rng.randint(2, 8)
    long_s = steps * 0.04
    faults = [
        Kill(rank, at=rng.random() * long_s) if rng.random() < 0.7 else Kill(rank, step=rng.randrange(steps))
        for rank in rng.sample(range(workers), rng.randint(0, workers - fewest))
    ]
    restart = rng.random() < 0.4
    if restart:
        faults += [Kill(rng.randrange(workers), at=rng.random() * long_s) for _ in range(2)]
    cluster = pl.Simulated(
        workers=workers,
        min_workers=fewest,
        restart=restart,
        compute=rng.choice([pl.times.Exponential(0.01), pl.times.Constant(0.01)]),
        link=rng.choice(LINKS),
        faults=faults,
    )
    number = rng.choice([each for each in _ALL if "accumulate" not in CHANGES[each]])
    return number, spec, cluster, steps, rng.randint(1, 4)


def random_processes(seed):
    """The same for processes and real signals."""
    rng = random.Random(seed)
    steps = rng.randint(4, 8)
    make, numbers = EXACT[rng.choice(list(EXACT))]
    spec, number = make(rng), rng.choice(numbers)
    ranks = rng.sample(range(int("placement=worker" in spec), 4), rng.randint(1, 3))
    faults = [
        Kill(rank, at=rng.random() * 0.3) if rng.random() < 0.7 else Kill(rank, step=rng.randrange(steps))
        for rank in ranks
    ]
    restart = rng.random() < 0.4
    if restart:
        faults.append(Kill(ranks[0], at=0.3 + rng.random() * 0.3))
    cluster = pl.Local(
        workers=4,
        min_workers=1,
        restart=restart,
        threads=1,
        compute=pl.times.Constant("30ms"),
        faults=faults,
    )
    return number, spec, cluster, steps


def check_against_single(run, alone):
    """Check a run that has lost ranks against `single`: weights, losses, samples, metric; and its record."""
    torch.testing.assert_close(run.parameters, alone.parameters, rtol=0, atol=1e-12)
    assert [each.step for each in run.history] == [each.step for each in alone.history]
    assert [each.samples for each in run.history] == [each.samples for each in alone.history]
    assert [each.loss for each in run.history] == pytest.approx(
        [each.loss for each in alone.history], abs=1e-12
    )
    assert run.metric == pytest.approx(alone.metric, abs=1e-12)
    times_s = [each.seconds for each in run.history]
    assert times_s == sorted(times_s)
    check_members(run)


def check_members(run):
    """Check that members are those before, without the lost and with the joined, and the lists of these."""
    for earlier, later in itertools.pairwise(run.generations):
        stayed = set(earlier.members) - set(later.lost)
        assert set(later.members) == stayed.union(later.joined)
        assert len(stayed) < len(earlier.members) or later.joined
        assert later.detected_s <= later.began_s
    assert [rank for rank, _ in run.joined] == [rank for each in run.generations for rank in each.joined]
    # A rank that is lost after the last step ends no generation.
    assert {rank for each in run.generations for rank in each.lost} <= {rank for rank, _ in run.lost}
