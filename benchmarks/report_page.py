"""Seconds until headless Chromium shows a report of 5 strategies, 4 ranks and 50,000 spans.

The time is from the request to open the file until all charts are drawn. The limits are set by this project, 2 s and
6 MB. For comparison, an empty page is opened in the same browser in the same way, round by round.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import paceline as pl
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from paceline.analysis.comparison.entry import Entry
from paceline.report import write_page
from tests.report.chromium import Chromium, find_chromium

STRATEGIES = ("all-reduce:algorithm=ring", "map-reduce", "sync", "k-sync:k=3", "async")
SPANS = 50_000
ROUNDS = 7
LIMIT_S = 60.0
BOUND_S = 2.0
BOUND_BYTES = 6_000_000
EMPTY = "<!doctype html><html data-ready=yes><title>empty</title><p>empty</p></html>"


def measure() -> Result:
    chromium = find_chromium()  # type: ignore[no-untyped-call]
    if chromium is None:
        return _result([], 0, ["a report in Chromium: as root on Debian, apt-get install chromium"])
    with tempfile.TemporaryDirectory() as folder:
        report, empty = Path(folder, "report.html"), Path(folder, "empty.html")
        write_page(report, [_entry(strategy) for strategy in STRATEGIES], title="50,000 spans")
        empty.write_text(EMPTY, encoding="utf-8")
        browser = Chromium(chromium)  # type: ignore[no-untyped-call]
        try:
            seconds = [
                (_opening_s(browser, report), _opening_s(browser, empty)) for _ in rounds(ROUNDS, LIMIT_S)
            ]
        finally:
            browser.close()  # type: ignore[no-untyped-call]
        return _result(seconds, report.stat().st_size, [])


def _result(seconds: list[tuple[float, float]], nbytes: int, unmeasured: list[str]) -> Result:
    title = f"a report of {len(STRATEGIES)} strategies, 4 ranks and {SPANS:,} spans in headless Chromium"
    if not seconds:
        return Result(title=title, unit="s", rows=[], goals=[], unmeasured=unmeasured)
    ours = Row(what="the report", rounds=[ours_s for ours_s, _ in seconds])
    empty = Row(what="an empty page", rounds=[empty_s for _, empty_s in seconds])
    return Result(
        title=title,
        unit="s",
        rows=[ours, empty],
        goals=[
            Goal(what="the report / 2 s", rounds=[s / BOUND_S for s in ours.rounds], at_most=1.0),
            Goal(what="its size / 6 MB", rounds=[nbytes / BOUND_BYTES], at_most=1.0),
            Goal(what="the report / an empty page", rounds=compare(ours, empty)),
        ],
    )


def _entry(strategy: str) -> Entry:
    """Return a run with its share of the spans. A short run determines the number of steps."""
    spans = len(_run(strategy, 20).trace.to_arrays()["spans"])
    run = _run(strategy, 20 * SPANS // len(STRATEGIES) // spans + 1)
    return Entry(name=strategy, runs=(run,))


def _run(strategy: str, steps: int) -> pl.Run:
    inputs = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    task = pl.Task(
        model=lambda: torch.nn.Linear(8, 1),
        data=(inputs, inputs[:, :1]),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
        batch_size=32,
    )
    times = pl.times.ShiftedExponential(shift="8ms", mean="2ms")
    cluster = pl.Simulated(workers=4, compute=times, link=pl.Link("1Gbps", "50us"), slow={3: 4.0})
    return pl.train(task, strategy, cluster, steps=steps)


def _opening_s(browser: Chromium, path: Path) -> float:
    page = browser.page(path)  # type: ignore[no-untyped-call]
    try:
        seconds: float = page.opening_s
        return seconds
    finally:
        page.close()
