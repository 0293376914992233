import math

import pytest

from paceline.cli import progress as module
from paceline.cli.progress import shown_progress
from paceline.run import Progress


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now_s = 100.0

    monkeypatch.setattr(module.time, "monotonic", lambda: Clock.now_s)
    return Clock


def test_quiet_gives_no_callback():
    with shown_progress(quiet=True) as show:
        assert show is None


def test_lines_come_two_seconds_apart(clock, capsys):
    with shown_progress(quiet=False) as show:
        for step, now_s in enumerate([100.0, 101.9, 102.1, 103.0, 104.2]):
            clock.now_s = now_s
            show(Progress(step, 10, 0.5, 64 * step, 1.0))
    steps = [line.split()[1] for line in capsys.readouterr().err.splitlines()]
    assert steps == ["0/10", "2/10", "4/10"]


def test_a_line_tells_step_loss_metric_and_samples_a_second(capsys):
    with shown_progress(quiet=False) as show:
        show(Progress(3, 10, 0.25, 6400, 2.0, 0.9))
    assert capsys.readouterr().err == "step 3/10  loss 0.2500  metric 0.9000  3,200 samples/s\n"


def test_a_run_without_mathematics_shows_no_loss(capsys):
    with shown_progress(quiet=False) as show:
        show(Progress(3, 10, math.nan, 6400, 0.0))
    assert capsys.readouterr().err == "step 3/10  \n"


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with shown_progress(quiet=False) as show:
        show(Progress(3, 10, 0.25, 6400, 2.0))
    assert "3/10" in capsys.readouterr().err
