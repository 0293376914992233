import pytest
from tasks import WORLDS, a_task, simulated
from torch import nn

import paceline as pl
from paceline.trace import Kind

N = 37 * 8  # bytes of the parameters of the small task


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("workers", [1, 3])
def test_the_server_broadcasts_and_each_worker_sends_one_gradient_a_step(world, workers):
    run = pl.train(a_task(), "map-reduce", WORLDS[world](workers), steps=4)
    assert [spans.role for spans in run.trace.spans] == ["worker"] * workers + ["server"]
    assert run.bytes_sent == [4 * N] * workers + [4 * workers * N]
    assert run.messages_sent == [4] * workers + [4 * workers]


def test_only_the_server_updates():
    run = pl.train(a_task(), "map-reduce", simulated(2), steps=4)
    assert [len(spans.of(Kind.UPDATE)) for spans in run.trace.spans] == [0, 0, 4]


@pytest.mark.parametrize("p", [1, 2, 5])
def test_a_step_takes_what_the_formula_of_the_server_says(p):
    a, b = 0.003, 1e-6
    run = pl.train(a_task(), "map-reduce", simulated(p, link=pl.Link("8Mbps", "3ms")), steps=1)
    # Each copy arrives N b after the one before it: the last worker begins last, and is alone on the way back.
    assert run.seconds == pytest.approx(a + p * N * b + 0.01 + a + N * b)


def test_statistics_are_handed_to_the_server_by_the_first_worker_alone():
    task = a_task(model=lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).double())
    run = pl.train(task, "map-reduce", simulated(3), steps=1)
    assert run.messages_sent == [1 + 2, 1, 1, 3 * (1 + 2)]
