"""Progress of a run on stderr: bars on a terminal, else a line every two seconds."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from paceline.analysis.comparison.contender import Stage
    from paceline.planner.search import SearchProgress
    from paceline.runs.run import Progress, Run

SECONDS_BETWEEN_LINES = 2.0

Show = Callable[["Progress"], None]
ShowStage = Callable[["Stage"], None]


def shown_progress(*, quiet: bool) -> AbstractContextManager[Show | None]:
    """Return a context with the progress function for `train`. None if nothing is shown."""
    if quiet:
        return nullcontext()
    return _bar() if sys.stderr.isatty() else nullcontext(_lines())


def shown_comparison(*, quiet: bool) -> AbstractContextManager[ShowStage | None]:
    """Return a context with the progress function for `compare`. None if nothing is shown."""
    if quiet:
        return nullcontext()
    return _bar_each() if sys.stderr.isatty() else nullcontext(_lines_of_each())


@contextmanager
def shown_name(doing: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with the name of the next item. The name is shown only on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console

    with Console(stderr=True).status(doing) as status:
        yield lambda name: status.update(f"{doing} {name}")


def _lines(name: str = "") -> Show:
    last_s = -math.inf

    def show(progress: Progress) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= SECONDS_BETWEEN_LINES:
            last_s = now_s
            _print(f"{name}step {progress.step}/{progress.steps}  {_figures(progress)}")

    return show


def _lines_of_each() -> ShowStage:
    shows: dict[str, Show] = {}

    def show(stage: Stage) -> None:
        if stage.progress is not None:
            title = _title(stage)
            shows.setdefault(title, _lines(f"{title}: "))(stage.progress)
        elif stage.run is None:
            _print(f"{_title(stage)}: {'starting' if stage.error is None else 'failed'}")

    return show


@contextmanager
def _bar() -> Iterator[Show]:
    with _bars() as bars:
        row = bars.add_task("", total=None, figures="starting the workers")
        bars.refresh()

        def show(progress: Progress) -> None:
            _draw(bars, row, progress)

        yield show


@contextmanager
def _bar_each() -> Iterator[ShowStage]:
    """Yield a progress function with a bar for each strategy, which restarts with every round."""
    rows: dict[str, TaskID] = {}
    with _bars() as bars:

        def show(stage: Stage) -> None:
            if stage.name not in rows:
                rows[stage.name] = bars.add_task("", total=None, figures="")
            row = rows[stage.name]
            if stage.progress is not None:
                _draw(bars, row, stage.progress)
            elif stage.run is None:
                figures = "starting the workers" if stage.error is None else "failed"
                bars.reset(row, description=_title(stage), total=None, figures=figures)
                bars.refresh()
            else:
                _draw(bars, row, _ended(stage.run))
                bars.stop_task(row)

        yield show


def _bars() -> Bars:
    from rich import progress as rich
    from rich.console import Console

    names = rich.TextColumn("{task.description}", markup=False)
    figures = rich.TextColumn("{task.fields[figures]}", markup=False)
    counts = (rich.TextColumn("step"), rich.MofNCompleteColumn(), rich.BarColumn(bar_width=None))
    columns: tuple[Any, ...] = (names, *counts, figures, rich.TimeRemainingColumn())
    # Drawn when called, at most ten times a second: a drawing thread would compete with the workers for CPU time.
    return rich.Progress(
        *columns, console=Console(stderr=True), transient=True, auto_refresh=False, expand=True
    )


def _draw(bars: Bars, row: TaskID, progress: Progress) -> None:
    bars.update(row, completed=progress.step, total=progress.steps, figures=_figures(progress))
    bars.refresh()


def _ended(run: Run) -> Progress:
    from paceline.runs.run import Progress

    samples = run.history[-1].samples if run.history else 0
    return Progress(run.steps, run.steps, run.loss, samples, run.seconds, run.metric)


def _title(stage: Stage) -> str:
    return stage.name if stage.rounds == 1 else f"{stage.name} ({stage.round}/{stage.rounds})"


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _figures(progress: Progress) -> str:
    figures = []
    if math.isfinite(progress.loss):
        figures.append(f"loss {progress.loss:.4f}")
    if progress.metric is not None:
        figures.append(f"metric {progress.metric:.4f}")
    if progress.seconds > 0:
        figures.append(f"{progress.samples / progress.seconds:,.0f} samples/s")
    if progress.workers is not None:
        figures.append(f"{progress.workers} worker{'s' * (progress.workers != 1)}")
    if progress.slow_rank is not None:
        slowness = f" ({progress.slowness:.1f}x)" if math.isfinite(progress.slowness) else ""
        figures.append(f"rank {progress.slow_rank} is slow{slowness}")
    return "  ".join(figures)


ShowSearch = Callable[["SearchProgress | str"], None]


@contextmanager
def shown_search(*, quiet: bool) -> Iterator[ShowSearch | None]:
    """Yield the progress function for `plan`: one line on a terminal, else a line every two seconds."""
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield _lines_of_search()
    else:
        with shown_name("planning:", quiet=False) as show:
            yield lambda progress: show(_searched(progress))


def _lines_of_search() -> ShowSearch:
    last_s = -math.inf

    def show(progress: SearchProgress | str) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= SECONDS_BETWEEN_LINES:
            last_s = now_s
            _print(_searched(progress))

    return show


def _searched(progress: SearchProgress | str) -> str:
    if isinstance(progress, str):
        return f"running {progress}"
    if progress.calibrates:
        return f"measuring {progress.name}"
    return f"configuration {progress.tried + 1}  {progress.name}"
