import math

import pytest

from paceline.analysis.comparison.contender import Stage
from paceline.cli import progress as module
from paceline.cli.progress import shown_comparison, shown_progress
from paceline.runs.run import Progress


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


def test_a_slow_rank_is_shown(capsys):
    with shown_progress(quiet=False) as show:
        show(Progress(3, 10, math.nan, 0, 0.0, None, 2, 4.04))
    assert capsys.readouterr().err == "step 3/10  rank 2 is slow (4.0x)\n"


def test_a_slow_rank_that_has_not_ended_a_computation_is_shown_without_a_figure(capsys):
    with shown_progress(quiet=False) as show:
        show(Progress(3, 10, math.nan, 0, 0.0, None, 2, math.inf, 3))
    assert capsys.readouterr().err == "step 3/10  3 workers  rank 2 is slow\n"


def stage(**news):
    return Stage(name="k-sync:k=3", round=2, rounds=3, **news)


def test_quiet_gives_no_callback_to_a_comparison_either():
    with shown_comparison(quiet=True) as show:
        assert show is None


def test_a_comparison_tells_strategy_and_round_of_each_line(clock, capsys):
    with shown_comparison(quiet=False) as show:
        show(stage())
        show(stage(progress=Progress(3, 10, 0.5, 64, 1.0)))
        show(stage(progress=Progress(4, 10, 0.5, 64, 1.0)))  # less than two seconds later
        show(Stage(name="async", round=1, rounds=1, progress=Progress(1, 10, 0.5, 64, 1.0)))
        show(stage(error="no luck"))
    assert capsys.readouterr().err.splitlines() == [
        "k-sync:k=3 (2/3): starting",
        "k-sync:k=3 (2/3): step 3/10  loss 0.5000  64 samples/s",
        "async: step 1/10  loss 0.5000  64 samples/s",
        "k-sync:k=3 (2/3): failed",
    ]


def test_a_terminal_gets_a_bar_for_each_strategy(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    with shown_comparison(quiet=False) as show:
        show(stage())
        show(stage(progress=Progress(3, 10, 0.25, 6400, 2.0)))
        show(Stage(name="async", round=1, rounds=1))
        show(Stage(name="async", round=1, rounds=1, error="no luck"))
    shown = capsys.readouterr().err
    assert "k-sync:k=3 (2/3)" in shown
    assert "3/10" in shown
    assert "failed" in shown
