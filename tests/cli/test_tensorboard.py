import importlib.util
import math

import pytest
import torch
from chosen_runs import run_of, with_figures
from refusals import has, refused
from tasks import a_task, simulated

import paceline as pl
from paceline.cli.tensorboard import Board, Page
from paceline.runs.run import Progress

INSTALLED = importlib.util.find_spec("tensorboard") is not None


class Notes:
    """A SummaryWriter that records its calls."""

    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))


@pytest.mark.skipif(INSTALLED, reason="tensorboard is installed")
def test_without_the_package_the_remedy_is_told(tmp_path):
    with refused("--tensorboard", str(tmp_path), bound=has("tensorboard"), remedy=has("pip install")):
        Board(tmp_path)


def test_every_step_of_a_run_is_written():
    notes = Notes()
    Page(notes).write(with_figures(run_of("single", workers=1), metrics=(None, 0.5), samples=8))
    assert ("run/loss", 1.0, 1) in notes.scalars
    assert ("run/metric", 0.5, 2) in notes.scalars
    assert ("run/samples_per_s", 8.0, 2) in notes.scalars
    assert [step for tag, _, step in notes.scalars if tag == "run/metric"] == [2]


def test_progress_is_written_while_the_run_goes_on():
    notes = Notes()
    Page(notes).show(Progress(3, 10, math.nan, 64, 2.0, 0.25))
    assert notes.scalars == [("live/metric", 0.25, 3), ("live/samples_per_s", 32.0, 3)]


@pytest.mark.skipif(not INSTALLED, reason="tensorboard is not installed")
def test_a_page_becomes_a_file_of_events(tmp_path):
    with Board(tmp_path).page("k-sync:k=3/1") as page:
        page.write(with_figures(run_of("single", workers=1), metrics=(0.5,)))
    assert list((tmp_path / "k-sync_k=3_1").glob("events.out.tfevents.*"))


def test_the_learning_rate_of_each_update_is_written():
    task = a_task(schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    notes = Notes()
    Page(notes).write(pl.train(task, "all-reduce", simulated(2), steps=3))
    rates = [value for tag, value, _ in notes.scalars if tag == "run/learning_rate"]
    assert rates == [pytest.approx(rates[0] * 0.5**step) for step in range(3)]
    assert rates[0] == task.build_optimizer(task.build_model(0)).param_groups[0]["lr"]
    assert "learning_rate" not in pl.train(a_task(), "single", simulated(1), steps=1).history[0].extra
