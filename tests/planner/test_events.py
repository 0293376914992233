import pytest
import torch
from torch import nn

import paceline as pl

EXPONENTIAL = pl.times.ShiftedExponential(shift=0.01, mean=0.02)


def task(workers=4):
    return pl.Task(
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
        data=(torch.zeros(64, 8), torch.zeros(64, dtype=torch.int64)),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=2 * workers,
    )


def cluster(workers=4, **words):
    words = {"compute": pl.times.Constant("10ms"), "link": pl.Link("1Mbps", "1ms")} | words
    return pl.Simulated(workers, math="none", **words)


def steady_s(strategy, where, few, more):
    """Return the seconds of an update between two runs of different lengths."""
    short, long = (pl.train(task(where.workers), strategy, where, steps=steps) for steps in (few, more))
    return (long.seconds - short.seconds) / (more - few)


SIMULATED = [
    "sync:servers=2",
    "k-sync:k=2",
    "async",
    "k-batch-async:k=2",
    "map-reduce",
    "decentralized",
    "fedavg",
]
MORE = [
    "k-batch-sync:k=3",
    "k-async:k=2",
    "ssp:staleness=1",
    "sync:placement=all",
    "central-storage",
    "decentralized:mode=async",
]


@pytest.mark.parametrize(
    "strategy", [*SIMULATED, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)]
)
@pytest.mark.parametrize("words", [{}, {"slow": {1: 2.0}}], ids=["equal", "straggler"])
def test_a_prediction_is_the_steady_state_of_a_long_simulation(strategy, words):
    where = cluster(**words)
    found = pl.predict(task(), strategy, where)
    assert found.step_seconds == pytest.approx(steady_s(strategy, where, 60, 260), rel=0.015)
    assert found.parts.total == pytest.approx(found.step_seconds)
    run = pl.train(task(), strategy, where, steps=4)
    assert found.memory_bytes == pytest.approx(max(rank["total"] for rank in run.memory), rel=0.01)


@pytest.mark.parametrize(
    ("strategy", "expected_s"),
    [
        ("sync", 0.01 + 0.02 * (1 + 1 / 2 + 1 / 3 + 1 / 4)),
        ("all-reduce", 0.01 + 0.02 * (1 + 1 / 2 + 1 / 3 + 1 / 4)),
        ("k-sync:k=2", 0.01 + 0.02 * (1 / 3 + 1 / 4)),
        ("async", 0.03 / 4),
        ("k-batch-async:k=2", 2 * 0.03 / 4),
    ],
)
def test_random_times_give_the_published_expectations(strategy, expected_s):
    """Dutta et al., 2018. Communication is free."""
    where = cluster(compute=EXPONENTIAL, link=pl.Link.ideal())
    assert pl.predict(task(), strategy, where).step_seconds == pytest.approx(expected_s, rel=0.03)


def test_a_straggler_makes_others_wait():
    parts = pl.predict(task(), "all-reduce", cluster(slow={2: 3.0}, link=pl.Link.ideal())).parts
    assert parts.compute == pytest.approx(0.015)
    assert parts.wait == pytest.approx(0.015)


def test_the_update_of_a_server_counts_while_workers_wait():
    device = pl.devices.CPU(flops=1e12, memory_bandwidth="1MB/s")
    where = pl.Simulated(2, math="none", device=device, link=pl.Link.ideal())
    parts = pl.predict(task(2), "sync", where).parts
    assert parts.update > 0.3 * parts.total


def test_gradients_are_measured_here_if_no_times_are_given():
    found = pl.predict(task(), "all-reduce", pl.Simulated(workers=4))
    assert 0 < found.parts.compute < 1


def test_the_model_of_the_task_is_not_changed():
    model = nn.Linear(8, 2)
    own = pl.Task(
        model=model,
        data=(torch.zeros(8, 8), torch.zeros(8, dtype=torch.int64)),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=4,
    )
    pl.predict(own, "async", cluster(2))
    assert not model.weight.is_meta


@pytest.mark.parametrize("strategy", ["pipeline:microbatches=4", "zero:stage=3", "tensor:size=2"])
def test_ranks_that_wait_for_a_slow_one_reach_a_steady_state(strategy):
    where = cluster(2, slow={1: 3.0})
    step_s = steady_s(strategy, where, 10, 30)
    assert pl.predict(task(2), strategy, where).step_seconds == pytest.approx(step_s, rel=0.015)
