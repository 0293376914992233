"""Without given times, each pass through a segment costs its measured time."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

import paceline as pl
from paceline.trace import Kind


class Sleeper(nn.Module):
    """A layer that takes a given time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return x * self.weight


def test_each_segment_takes_its_own_time_whatever_its_operations():
    task = pl.Task(
        model=lambda: nn.Sequential(Sleeper(0.004), nn.Linear(4, 4), Sleeper(0.02)),
        data=(torch.zeros(4, 4), torch.zeros(4, 4)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=4,
    )
    cluster = pl.Simulated(workers=2, link=pl.Link.ideal())
    run = pl.train(task, "pipeline:microbatches=2,order=zb-h1,cuts=2", cluster, steps=1)
    first, second = (spans.of(Kind.FORWARD) for spans in run.trace.spans)
    assert (first["end_s"] - first["start_s"] >= 0.004).all()
    assert (second["end_s"] - second["start_s"] >= 0.02).all()
    for spans in run.trace.spans:  # backward sleeps nowhere
        array = spans.of(Kind.BACKWARD, Kind.WEIGHTS)
        assert (array["end_s"] > array["start_s"]).all()
