from dataclasses import replace

import pytest
import torch
from refusals import refused

import paceline as pl

DEVICE = replace(pl.devices.A100, efficiency=0.7, memory_efficiency=0.8, launch="20us")
SIZES = {"layers": 8, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 4096}


def cluster(workers, hosts=1, **words):
    link = pl.Link("2400Gbps", "5us") if hosts == 1 else pl.Link("800Gbps", "10us")
    inside = {} if hosts == 1 else {"inside": pl.Link("2400Gbps", "5us")}
    return pl.Simulated(workers, math="none", device=DEVICE, hosts=hosts, link=link, **inside, **words)


def task(**words):
    return pl.models.GPT(**SIZES | {"batch_size": 64, "dtype": torch.bfloat16} | words)


def small(strategy):
    """Return a task with as many layers as the strategy needs, so that the simulation has few events."""
    return task(layers=8 if "pipeline=8" in strategy or "chunks=2" in strategy else 4)


CASES = [
    (1, 1, "single"),
    (8, 1, "all-reduce"),
    (8, 1, "zero:stage=1"),
    (8, 1, "zero:stage=2"),
    (4, 1, "pipeline:microbatches=8"),
    (16, 2, "hybrid:pipeline=4,tensor=2,microbatches=8"),
]
MORE = [
    (16, 2, "all-reduce"),
    (8, 1, "all-reduce:bucket_mb=4,algorithm=halving-doubling"),
    (8, 1, "tensor:size=4"),
    (16, 2, "hybrid:pipeline=2,tensor=4,microbatches=16,zero=1"),
    (16, 2, "hybrid:pipeline=4,tensor=4,microbatches=32,order=interleaved,chunks=2"),
    (16, 2, "hybrid:pipeline=4,microbatches=16,order=zb-h1"),
    (16, 2, "hybrid:pipeline=8,tensor=2,microbatches=64,order=gpipe"),
    (16, 2, "hybrid:pipeline=2,tensor=8,microbatches=8,sequence=true"),
]


@pytest.mark.parametrize(
    ("workers", "hosts", "strategy"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_a_prediction_equals_the_event_simulation(workers, hosts, strategy):
    """With equal micro-batches, and cards that are no bottleneck."""
    found = pl.predict(small(strategy), strategy, cluster(workers, hosts))
    run = pl.train(small(strategy), strategy, cluster(workers, hosts), steps=1)
    assert found.step_seconds == pytest.approx(run.step_seconds, rel=0.01)
    assert found.memory_bytes == pytest.approx(max(rank["total"] for rank in run.memory), rel=0.02)
    assert found.parts.total == pytest.approx(found.step_seconds)


@pytest.mark.parametrize(
    "strategy", ["all-reduce", "zero:stage=1", "zero:stage=2", "hybrid:pipeline=2,zero=1,microbatches=2"]
)
def test_gradients_of_32_bits_take_the_time_of_the_event_simulation(strategy):
    wide = task(layers=2, gradient_dtype=torch.float32)
    found = pl.predict(wide, strategy, cluster(4))
    assert found.step_seconds == pytest.approx(
        pl.train(wide, strategy, cluster(4), steps=1).step_seconds, rel=0.01
    )
    assert found.step_seconds > pl.predict(task(layers=2), strategy, cluster(4)).step_seconds


STEADY = [(4, 1, "zero:stage=3"), (4, 1, "local-sgd:period=4"), (4, 1, "diloco:period=4")]
MORE_STEADY = [
    (8, 2, "zero:stage=3"),
    (8, 1, "zero:stage=3,segments=3"),
    (8, 1, "zero:stage=3,microbatches=2"),
    (8, 2, "local-sgd:period=4,averages=parameters+momentum"),
    (8, 2, "hybrid:pipeline=2,zero=2,microbatches=4"),
    (8, 1, "hybrid:pipeline=2,tensor=2,zero=3,microbatches=4"),
]


@pytest.mark.parametrize(
    ("workers", "hosts", "strategy"),
    [*STEADY, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_STEADY)],
)
def test_a_prediction_is_of_a_step_in_the_steady_state(workers, hosts, strategy):
    """The last step of a run gathers the model, and a period ends every 4 steps."""
    found = pl.predict(small(strategy), strategy, cluster(workers, hosts))
    short, long = (pl.train(small(strategy), strategy, cluster(workers, hosts), steps=n) for n in (4, 8))
    assert found.step_seconds == pytest.approx((long.seconds - short.seconds) / 4, rel=0.01)
    assert found.memory_bytes == pytest.approx(max(rank["total"] for rank in long.memory), rel=0.05)
    assert found.parts.total == pytest.approx(found.step_seconds)


@pytest.mark.parametrize("strategy", ["single", "all-reduce"])
def test_memory_with_recomputation_is_that_of_the_simulation(strategy):
    again, here = task(recompute="full"), cluster(1 if strategy == "single" else 4)
    found = pl.predict(again, strategy, here)
    run = pl.train(again, strategy, here, steps=1)
    assert found.memory_bytes == pytest.approx(max(rank["total"] for rank in run.memory), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["pipeline:microbatches=8", "hybrid:tensor=2,pipeline=2,microbatches=8"])
def test_it_equals_the_simulation_with_recomputation(strategy):
    again = task(recompute="full")
    found = pl.predict(again, strategy, cluster(4))
    run = pl.train(again, strategy, cluster(4), steps=1)
    assert found.step_seconds == pytest.approx(run.step_seconds, rel=0.01)
    assert found.memory_bytes == pytest.approx(max(rank["total"] for rank in run.memory), rel=0.03)


def test_a_prediction_does_not_depend_on_earlier_ones_of_the_same_task():
    """Cuts for tensor groups of different sizes may have the same bounds."""
    given = task()
    strategies = [f"hybrid:data={8 // size},tensor={size}" for size in (2, 4)]
    in_order = [pl.predict(given, strategy, cluster(8)) for strategy in strategies]
    assert in_order == [pl.predict(task(), strategy, cluster(8)) for strategy in strategies]


def test_many_micro_batches_are_extrapolated_from_few():
    big = task(batch_size=512)
    strategy = "pipeline:stages=4,microbatches=512"
    found = pl.predict(big, strategy, cluster(4)).step_seconds
    few, more = (
        pl.predict(task(batch_size=n), f"pipeline:stages=4,microbatches={n}", cluster(4)).step_seconds
        for n in (64, 128)
    )
    update_s = pl.predict(big, strategy, cluster(4)).parts.update
    assert found - update_s == pytest.approx(few + 7 * (more - few) - update_s, rel=0.01)


def test_a_prediction_says_what_follows_from_its_seconds():
    found = pl.predict(task(), "single", cluster(1))
    assert found.samples_per_second == pytest.approx(64 / found.step_seconds)
    assert found.tokens_per_second == pytest.approx(256 * found.samples_per_second)
    assert found.fits
    huge = pl.models.GPT(96, 12288, 96, 2048, 51200, 8, dtype=torch.bfloat16)
    assert not pl.predict(huge, "single", cluster(1)).fits


def test_a_shared_card_makes_messages_between_hosts_slower():
    own, shared = (
        pl.predict(task(), "hybrid:pipeline=1,tensor=8,microbatches=1", cluster(16, 2, **words)).step_seconds
        for words in ({}, {"card": "800Gbps"})
    )
    assert shared > own


def test_a_codec_makes_messages_shorter():
    plain, coded = (
        pl.predict(task(), f"all-reduce:codec={codec}", cluster(2, 2)).step_seconds
        for codec in ("none", "int4")
    )
    assert coded < plain


def test_a_cluster_that_is_not_simulated_is_refused():
    with refused("cluster"):
        pl.predict(task(), "single", pl.Local(workers=2))


def test_a_model_of_shapes_cannot_be_measured():
    with refused("cluster"):
        pl.predict(task(), "all-reduce", pl.Simulated(workers=2))


def test_faults_are_refused():
    with refused("faults"):
        pl.predict(task(), "async", cluster(2, faults=[pl.faults.Kill(1, at=1.0)]))
