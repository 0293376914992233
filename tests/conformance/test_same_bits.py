"""The order of every sum is fixed, so that worlds and algorithms agree to the last bit."""

import itertools

import pytest
import torch
from conformance.cases import REPRODUCIBLE, STEPS, VARIANTS, in_turn, one_in
from tasks import simulated
from torch import nn

import paceline as pl
from paceline.links.memory.lending import LEAST_BYTES
from paceline.testing.checks import check_both_worlds_give_the_same_bits, check_stragglers_change_no_bit
from paceline.testing.tasks import odd_task

DTYPES = [torch.float32, torch.float64]
ON_TWO_AND_THREE = list(itertools.product(["single", *REPRODUCIBLE], [2, 3]))


# Each strategy is tested with both dtypes, which alternate between numbers of workers.
@pytest.mark.parametrize(
    ("spec", "workers", "dtype"), one_in(5, in_turn(ON_TWO_AND_THREE, [*DTYPES, *reversed(DTYPES)]))
)
def test_processes_and_simulation_give_the_same_bits(spec, workers, dtype):
    check_both_worlds_give_the_same_bits(spec, workers, odd_task(dtype))


class Lars(torch.optim.Optimizer):
    """An optimizer that needs whole layers, so that shards are not equal chunks."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=float(0.1 * p.norm() / (p.grad.norm() + 1e-6)))


@pytest.mark.parametrize(
    ("spec", "optimizer"),
    one_in(
        3,
        [
            ("hybrid:tensor=2,zero=2", torch.optim.Adam),
            ("hybrid:tensor=2,zero=1", torch.optim.Adam),
            ("zero:stage=3", Lars),
            ("zero:stage=2", Lars),
            ("zero:stage=1", Lars),
            ("hybrid:tensor=2,zero=3", torch.optim.Adam),
        ],
    ),
)
def test_shards_that_are_no_equal_chunks_are_summed_in_one_order(spec, optimizer):
    # Three workers, because with two there is only one order of summation.
    workers = 6 if "tensor" in spec else 3
    check_both_worlds_give_the_same_bits(spec, workers, odd_task(torch.float32, optimizer=optimizer))


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
    check_both_worlds_give_the_same_bits(spec, 3, odd_task(torch.float32, clip_norm=0.1))


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
    task = odd_task(dtype, optimizer=optimizer)
    ring, shared = (
        pl.train(task, f"all-reduce:algorithm={name}", simulated(workers), steps=STEPS)
        for name in ("ring", "shared")
    )
    assert torch.equal(ring.parameters, shared.parameters)


@pytest.mark.parametrize("spec", ["single", *REPRODUCIBLE])
def test_stragglers_and_networks_change_the_time_and_no_bit(spec):
    check_stragglers_change_no_bit(spec)
