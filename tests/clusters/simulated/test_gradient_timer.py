"""Without given times, gradients and updates cost their measured time. Each is measured when it is first needed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.costs.times import Times
from paceline.trace import Kind


class Counting(nn.Module):
    """A layer that records the number of samples of each call."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self.seen = seen
        self.layer = nn.Linear(4, 4)

    def __deepcopy__(self, memo: dict[int, object]) -> Counting:
        made = Counting(self.seen)
        made.load_state_dict(self.state_dict())
        return made

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return self.layer(x)


def simulate(strategy: str, seen: list[int], compute: Times | None = None) -> pl.Run:
    task = pl.Task(
        model=lambda: nn.Sequential(Counting(seen), Counting(seen), nn.Dropout(0.5), nn.Linear(4, 4)),
        data=(torch.ones(16, 4), torch.zeros(16, 4)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=16,
    )
    cluster = pl.Simulated(workers=2, link=pl.Link.ideal(), threads=1, compute=compute)
    return pl.train(task, strategy, cluster, steps=2)


@pytest.mark.parametrize("order", ["1f1b", "zb-h1"])
def test_a_model_in_pieces_is_never_measured_as_a_whole(order):
    seen: list[int] = []
    simulate(f"pipeline:microbatches=4,order={order},cuts=1", seen)
    assert {8, 16}.isdisjoint(seen)  # a worker's slice, and all of the batch


def test_gradients_and_updates_take_time_where_they_are_asked_for():
    seen: list[int] = []
    run = simulate("all-reduce", seen)
    assert {8, 16} <= set(seen)
    for kind in (Kind.COMPUTE, Kind.UPDATE):
        array = run.trace.spans[1].of(kind)
        assert (array["end_s"] > array["start_s"]).all()


@pytest.mark.parametrize("strategy", ["all-reduce", "pipeline:microbatches=4,cuts=1"])
def test_what_is_measured_on_the_way_leaves_no_trace_in_the_weights(strategy):
    measured = simulate(strategy, []).parameters
    assert torch.equal(measured, simulate(strategy, [], pl.times.Constant(1.0)).parameters)
