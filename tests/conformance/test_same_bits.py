"""The order of every sum is fixed, so that worlds and algorithms agree to the last bit."""

import itertools

import pytest
import torch
from conformance.cases import REPRODUCIBLE, STEPS, VARIANTS, in_turn, make_task, one_in
from tasks import numbers, simulated
from torch import nn

import paceline as pl
from paceline.links.lending import LEAST_BYTES


def odd_task(dtype, optimizer=lambda params: torch.optim.Adam(params, lr=0.01), **changes):
    """A model whose shards and chunks begin and end at odd places, with dropout."""
    return pl.Task(
        **{
            "model": lambda: nn.Sequential(
                nn.Linear(13, 37), nn.ReLU(), nn.Dropout(0.3), nn.Linear(37, 11), nn.ReLU(), nn.Linear(11, 3)
            ).to(dtype),
            "data": (numbers(50, 13, dtype=dtype), numbers(50, 3, seed=1, dtype=dtype)),
            "loss": nn.functional.mse_loss,
            "optimizer": optimizer,
            "batch_size": 17,
        }
        | changes
    )


DTYPES = [torch.float32, torch.float64]
ON_TWO_AND_THREE = list(itertools.product(["single", *REPRODUCIBLE], [2, 3]))


# Each strategy has both dtypes, and each number of workers has now the one, now the other.
@pytest.mark.parametrize(
    ("spec", "workers", "dtype"), one_in(3, in_turn(ON_TWO_AND_THREE, [*DTYPES, *reversed(DTYPES)]))
)
def test_processes_and_simulation_give_the_same_bits(spec, workers, dtype):
    task = odd_task(dtype)
    local = pl.train(task, spec, pl.Local(workers=workers, threads=1), steps=STEPS)
    virtual = pl.train(task, spec, simulated(workers), steps=STEPS)
    assert torch.equal(local.parameters, virtual.parameters)
    assert [record.loss for record in local.history] == [record.loss for record in virtual.history]


@pytest.mark.parametrize("spec", VARIANTS["sync"])
def test_messages_that_are_read_where_they_lie_change_no_bit(spec):
    task = odd_task(
        torch.float32, model=lambda: nn.Sequential(nn.Linear(13, 9001), nn.ReLU(), nn.Linear(9001, 3))
    )
    assert sum(parameter.nbytes for parameter in task.build_model(0).parameters()) / 3 > LEAST_BYTES
    local = pl.train(task, spec, pl.Local(workers=3, threads=1), steps=STEPS)
    assert torch.equal(local.parameters, pl.train(task, spec, simulated(3), steps=STEPS).parameters)


@pytest.mark.parametrize("spec", one_in(5, zip(["single", *REPRODUCIBLE])))
def test_processes_and_simulation_clip_to_the_same_bits(spec):
    task = odd_task(torch.float32, clip_norm=0.1)
    local = pl.train(task, spec, pl.Local(workers=3, threads=1), steps=STEPS)
    assert torch.equal(local.parameters, pl.train(task, spec, simulated(3), steps=STEPS).parameters)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("workers", [2, 3, 4, 7])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda params: torch.optim.Adam(params, lr=0.01),
    ],
    ids=["momentum", "adam"],
)
def test_ring_and_shared_memory_give_the_same_bits(optimizer, workers, dtype):
    task = odd_task(dtype, optimizer)
    ring, shared = (
        pl.train(task, f"all-reduce:algorithm={name}", simulated(workers), steps=STEPS)
        for name in ("ring", "shared")
    )
    assert torch.equal(ring.parameters, shared.parameters)


@pytest.mark.parametrize("spec", ["single", *REPRODUCIBLE])
def test_stragglers_and_networks_change_the_time_and_no_bit(spec):
    plain = pl.train(make_task(), spec, simulated(3), steps=STEPS)
    uneven = pl.train(
        make_task(),
        spec,
        simulated(3, compute=pl.times.Exponential(0.1), link=pl.Link("1Mbps", "5ms"), slow={0: 4.0}),
        steps=STEPS,
    )
    assert torch.equal(plain.parameters, uneven.parameters)
    assert uneven.seconds > plain.seconds
