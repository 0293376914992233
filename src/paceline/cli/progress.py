"""How far a run is, on stderr: a bar on a terminal, a line every two seconds elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.run import Progress

__all__ = ["shown_progress"]

SECONDS_BETWEEN_LINES = 2.0

Show = Callable[["Progress"], None]


def shown_progress(*, quiet: bool) -> AbstractContextManager[Show | None]:
    """What `train` is to call with its progress while the context is open. None where nothing is shown."""
    if quiet:
        return nullcontext()
    return _bar() if sys.stderr.isatty() else nullcontext(_lines())


def _lines() -> Show:
    last_s = -math.inf

    def show(progress: Progress) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= SECONDS_BETWEEN_LINES:
            last_s = now_s
            print(f"step {progress.step}/{progress.steps}  {_figures(progress)}", file=sys.stderr, flush=True)

    return show


@contextmanager
def _bar() -> Iterator[Show]:
    from rich import progress as rich
    from rich.console import Console

    figures = rich.TextColumn("{task.fields[figures]}", markup=False)
    counts = (rich.TextColumn("step"), rich.MofNCompleteColumn(), rich.BarColumn())
    columns = (*counts, figures, rich.TimeRemainingColumn())
    # Drawn when called, ten times a second at most: a thread that draws would contend with the workers.
    with rich.Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        row = bar.add_task("", total=None, figures="starting the workers")
        bar.refresh()

        def show(progress: Progress) -> None:
            bar.update(row, completed=progress.step, total=progress.steps, figures=_figures(progress))
            bar.refresh()

        yield show


def _figures(progress: Progress) -> str:
    figures = []
    if math.isfinite(progress.loss):
        figures.append(f"loss {progress.loss:.4f}")
    if progress.metric is not None:
        figures.append(f"metric {progress.metric:.4f}")
    if progress.seconds > 0:
        figures.append(f"{progress.samples / progress.seconds:,.0f} samples/s")
    return "  ".join(figures)
