import gc
import math

import pytest
import torch
from conformance.cases import one_in
from refusals import has, refused, unknown
from tasks import a_task, simulated
from torch import nn

import paceline as pl
from paceline.clusters.simulated.context import SimulatedContext


@pytest.mark.parametrize("workers", [0, -1, 1.5, "4", None, True])
def test_a_number_of_workers_out_of_range_is_refused(workers):
    with refused("workers", workers, bound=has(1)):
        pl.Simulated(workers=workers)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"math": "reel"}, unknown("math", "reel", nearest="real")),
        ({"compute": 0.1}, refused("compute", 0.1, bound=has("pl.times"))),
        ({"compute": None, "math": "none"}, refused("compute", None, bound=has("none"))),
        ({"device": "A100"}, refused("device")),
        ({"device": "A10", "compute": None}, unknown("device", "A10", nearest="A100")),
        ({"device": 3, "compute": None}, refused("device", 3, bound=has("pl.devices"))),
        ({"link": "10Gbps"}, refused("link", "10Gbps", bound=has("pl.Link"))),
        ({"inside": 3}, refused("inside", 3, bound=has("pl.Link"))),
        ({"hosts": 0}, refused("hosts", bound=has(1, 4))),
        ({"hosts": 5}, refused("hosts", bound=has(1, 4))),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(changes, refusal):
    with refusal:
        simulated(4, **changes)


def test_the_time_of_a_step_is_that_of_its_slowest_worker():
    run = pl.train(a_task(), "all-reduce", simulated(3, slow={1: 4.0}, link=pl.Link.ideal()), steps=5)
    assert run.seconds == pytest.approx(5 * 0.04)


def test_without_mathematics_the_clock_is_the_same():
    real, none = (
        pl.train(a_task(), "all-reduce", simulated(3, math=math), steps=4) for math in ("real", "none")
    )
    assert real.seconds == none.seconds
    assert real.bytes_sent == none.bytes_sent
    assert [a.seconds for a in real.history] == [b.seconds for b in none.history]
    assert math.isnan(none.loss)
    assert none.trace.spans == real.trace.spans


def test_a_model_of_any_size_costs_no_memory_without_mathematics():
    task = a_task(
        model=lambda: nn.Linear(10**6, 10**5, device="meta"), data=(torch.zeros(8, 1), torch.zeros(8, 1))
    )
    run = pl.train(task, "all-reduce", simulated(4, math="none"), steps=2)
    n = 4 * (10**11 + 10**5)
    assert run.bytes_sent == [2 * 2 * n * 3 // 4] * 4


def test_without_a_compute_time_the_tasks_own_gradient_is_timed():
    run = pl.train(a_task(), "single", pl.Simulated(workers=1), steps=3)
    assert run.history[0].seconds > 0
    steps = [b.seconds - a.seconds for a, b in zip(run.history, run.history[1:], strict=False)]
    assert steps == pytest.approx([run.history[0].seconds] * 2), "timed once"


TOY = pl.devices.CPU(flops=1e6, memory_bandwidth=1e6)


@pytest.mark.parametrize("math", ["real", "none"])
def test_a_device_prices_a_gradient_by_its_operations(math):
    task = a_task(model=lambda: nn.Linear(3, 5), data=(torch.zeros(8, 3), torch.zeros(8, 5)), batch_size=8)
    cluster = pl.Simulated(workers=2, device=TOY, math=math, link=pl.Link.ideal(), slow={1: 2.0})
    first, second = pl.train(task, "all-reduce", cluster, steps=1).trace.summary().ranks
    weights_s = 4 * 4 * 3 * 5 / 1e6  # read twice; their gradient is read and written
    assert first.compute_s == pytest.approx(3 * 4 * 2 * 3 * 5 / 1e6 + weights_s)
    assert first.update_s == pytest.approx(7 * 4 * (3 * 5 + 5) / 1e6)
    assert second.compute_s == pytest.approx(2 * first.compute_s)


def test_a_device_prices_passes_by_the_operations_of_their_segments():
    layers = nn.Sequential(nn.Linear(3, 300), nn.Linear(300, 300), nn.Linear(300, 5))
    task = a_task(model=layers, data=(torch.zeros(8, 3), torch.zeros(8, 5)), batch_size=8)
    cluster = pl.Simulated(workers=3, device=TOY, link=pl.Link.ideal())
    found = pl.train(task, "pipeline:microbatches=2", cluster, steps=1).trace.summary().ranks
    weights = (3 * 300, 300 * 300, 300 * 5)
    # Each micro-batch reads the weights twice, and reads and writes their gradient.
    expected = [3 * 8 * 2 * each / 1e6 + 2 * 4 * 4 * each / 1e6 for each in weights]
    assert [rank.compute_s for rank in found] == pytest.approx(expected)


def test_its_words_name_the_device():
    assert "each A100 at 91% of 312 Tflop/s" in str(pl.Simulated(workers=2, device="a100"))


def test_hosts_hold_neighbouring_ranks():
    async def program(ctx):
        return list(ctx.net.hosts)

    assert pl.run_program(program, simulated(5, hosts=2)).results[0] == [0, 0, 0, 1, 1]


def test_a_window_across_hosts_is_refused():
    with refused("window", "parameters"):
        pl.train(a_task(), "all-reduce:algorithm=shared", simulated(4, hosts=2), steps=1)


def test_a_cluster_says_what_it_is():
    text = str(simulated(8, hosts=2, slow={3: 2.0}))
    assert text.startswith("8 simulated workers, link ")
    assert "2 hosts, inside" in text
    assert "rank 3 2x as slow" in text


@pytest.mark.parametrize("strategy", one_in(3, zip(["async", "k-sync:k=2", "all-reduce"])))
def test_a_simulation_leaves_no_rank_to_the_collector(strategy):
    pl.train(a_task(), strategy, simulated(3), steps=5)  # torch caches data of its first use
    gc.collect()
    gc.disable()
    try:
        before = sum(type(thing) is SimulatedContext for thing in gc.get_objects())
        pl.train(a_task(), strategy, simulated(3), steps=5)
        assert sum(type(thing) is SimulatedContext for thing in gc.get_objects()) == before
    finally:
        gc.enable()
