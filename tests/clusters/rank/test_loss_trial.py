"""A run with summed parts of a batch warns once, before it begins, if its loss is not a mean over samples."""

import logging
import subprocess
import sys

import pytest
import torch
from processes import PATIENCE_S
from tasks import numbers, sgd, simulated
from torch import nn

import paceline as pl
from paceline.model.loss_trial import NOT_A_MEAN

SUM = nn.CrossEntropyLoss(reduction="sum")


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()


def task(loss=SUM, **changes):
    data = numbers(32, 4), torch.arange(32) % 3
    given = {"model": model, "data": data, "loss": loss, "optimizer": sgd, "batch_size": 16}
    return pl.Task(**(given | changes))


def warnings_of(caplog, given, strategy, workers, **changes):
    with caplog.at_level(logging.WARNING, "paceline"):
        pl.train(given, strategy, simulated(workers, **changes), steps=2)
    return [each for each in caplog.messages if each == NOT_A_MEAN]


@pytest.mark.parametrize(
    "strategy", ["all-reduce", "sync", "async", "pipeline", "zero:stage=3", "map-reduce"]
)
def test_a_run_that_parts_its_batches_warns_once(caplog, strategy):
    (message,) = warnings_of(caplog, task(), strategy, 2)
    assert "reduction='none'" in message


def test_micro_batches_of_one_worker_are_parts_too(caplog):
    assert warnings_of(caplog, task(accumulate=2), "single", 1)


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        ("single", 1),
        ("all-reduce", 1),
        ("layers", 2),
        ("tensor:size=2", 2),
        ("pipeline:microbatches=1", 2),
        ("fedavg", 2),
    ],
)
def test_a_run_that_computes_whole_batches_does_not_warn(caplog, strategy, workers):
    assert not warnings_of(caplog, task(), strategy, workers)


def test_a_mean_is_not_warned_of(caplog):
    assert not warnings_of(caplog, task(nn.CrossEntropyLoss()), "all-reduce", 2)


def test_a_simulation_without_mathematics_does_not_try(caplog):
    assert not warnings_of(caplog, task(), "all-reduce", 2, math="none")


def test_a_step_of_the_users_own_is_not_tried(caplog):
    step = lambda model, batch: SUM(model(batch[0]), batch[1])  # noqa: E731
    assert not warnings_of(caplog, task(None, step=step), "all-reduce", 2)


SCRIPT = """
import sys, torch
import paceline as pl

task = pl.Task(
    model=lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)),
    data=(torch.ones(32, 4), torch.arange(32) % 3),
    loss=torch.nn.CrossEntropyLoss(reduction="sum"),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    batch_size=16,
)
if __name__ == "__main__":
    pl.train(task, sys.argv[1], pl.Local(workers=2), steps=2)
"""


@pytest.mark.parametrize(
    "strategy", ["all-reduce", pytest.param("pipeline:microbatches=2", marks=pytest.mark.slow)]
)
def test_one_worker_process_warns(tmp_path, strategy):
    """In a program of its own: where workers write to is settled when the first of them starts."""
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, str(tmp_path / "script.py"), strategy]
    ended = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert ended.stderr.count(NOT_A_MEAN) == 1


def test_a_trial_changes_no_bit_of_a_run():
    """The loss draws random numbers: a trial must not take any of them."""

    class Noisy(nn.Module):
        def forward(self, outputs, target):
            return nn.functional.cross_entropy(outputs + torch.rand_like(outputs), target, reduction="sum")

    tried = pl.train(task(Noisy()), "all-reduce", simulated(2), steps=3)
    step = lambda model, batch: Noisy()(model(batch[0]), batch[1])  # noqa: E731
    untried = pl.train(task(None, step=step), "all-reduce", simulated(2), steps=3)
    assert torch.equal(tried.parameters, untried.parameters)


def test_the_data_and_the_model_are_used_no_more_often_than_without_a_trial():
    calls = []

    class Counted(nn.Linear):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    pl.train(task(model=lambda: Counted(4, 3).double()), "all-reduce", simulated(2), steps=2)
    assert calls.count(8) == 4, "two workers, two steps"


def test_a_trial_that_fails_is_silent(caplog):
    def fails_with_a_part(outputs, target):
        assert len(target) == 8
        return SUM(outputs, target)

    assert not warnings_of(caplog, task(fails_with_a_part), "all-reduce", 2)
