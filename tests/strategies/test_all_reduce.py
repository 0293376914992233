import pytest
import torch
from refusals import unknown
from tasks import WORLDS, a_task, simulated

import paceline as pl
from paceline.strategies.all_reduce import AllReduce
from paceline.trace import Kind

N = 37 * 8  # bytes of the gradient of the small task


class Stretch(torch.optim.Optimizer):
    """Needs whole layers: it makes every parameter one thousandth longer, and turns it by its gradient."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.data * 0.001 - p.grad * p.data.norm() / (1 + p.grad.norm()))


def single(**changes):
    return pl.train(a_task(**changes), "single", simulated(1), steps=5).parameters


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", ["ring", "shared"])
def test_an_optimizer_that_needs_whole_layers_gives_the_weights_of_single(algorithm, world):
    task = a_task(optimizer=Stretch)
    run = pl.train(task, f"all-reduce:algorithm={algorithm}", WORLDS[world](3), steps=5)
    torch.testing.assert_close(run.parameters, single(optimizer=Stretch), rtol=0, atol=1e-12)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("workers", [2, 4])
def test_the_ring_sends_what_its_formula_says(world, workers):
    run = pl.train(a_task(), "all-reduce:algorithm=ring", WORLDS[world](workers), steps=3)
    assert run.messages_sent == [3 * 2 * (workers - 1)] * workers
    assert sum(run.bytes_sent) == 3 * 2 * (workers - 1) * N


@pytest.mark.parametrize("world", WORLDS)
def test_shared_memory_passes_no_messages(world):
    run = pl.train(a_task(), "all-reduce:algorithm=shared", WORLDS[world](3), steps=3)
    assert run.messages_sent == [0, 0, 0]


@pytest.mark.parametrize("world", WORLDS)
def test_every_worker_updates(world):
    run = pl.train(a_task(), "all-reduce", WORLDS[world](3), steps=4)
    assert [len(spans.of(Kind.UPDATE)) for spans in run.trace.spans] == [4, 4, 4]


def test_auto_shares_memory_in_processes_and_passes_messages_on_a_network():
    local = pl.train(a_task(), "all-reduce", pl.Local(workers=2, threads=1), steps=1)
    virtual = pl.train(a_task(), "all-reduce", simulated(2), steps=1)
    assert local.messages_sent == [0, 0]
    assert min(virtual.messages_sent) > 0
    assert torch.equal(local.parameters, virtual.parameters)


def test_an_unknown_algorithm_is_refused_where_it_is_named():
    with unknown("algorithm", "magic"):
        AllReduce(algorithm="magic")
