"""The bench on local workers: one program for all sizes and algorithms, under the same conditions."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.bench.program import PING_PONG, Program
from paceline.bench.report import Fit, Report, Row, make_row
from paceline.bench.spec import Spec
from paceline.clusters.local.local import Local
from paceline.costs.fit import fit_link, largest_error
from paceline.costs.units import format_bytes
from paceline.programs import run_program

Times = Sequence[Sequence[float]]
"""Start and end of each call, on one rank."""


def measure(spec: Spec, cluster: Local, on_size: Callable[[int], None] | None = None) -> Report:
    """Run the bench. `on_size` is called with the index of each size, from 0, when its calls begin."""
    machine = machine_facts()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder, heard(on_size) as progress_path:
        program = Program(spec=spec, store_path=str(Path(folder) / "store"), progress_path=progress_path)
        results = run_program(program, cluster).results
    return report_of(spec, results, where=str(cluster), machine=machine)


def machine_facts() -> dict[str, Any]:
    """Return the facts needed to compare two benches. The load is measured just before the bench."""
    import torch

    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.processor() or platform.machine(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def report_of(
    spec: Spec, results: Sequence[Mapping[str, Any]], *, where: str, machine: Mapping[str, Any]
) -> Report:
    """Combine the results of the ranks into a report."""
    mistakes = [mistake for result in results for mistake in result["mistakes"]]
    rows: list[Row] = []
    for place, length in enumerate(spec.lengths):
        by_rank = [result["sizes"][place] for result in results]
        for name in spec.cases:
            times = [times_of_rank[name] for times_of_rank in by_rank]
            wrong = len({call for at, who, call, _ in mistakes if (at, who) == (place, name)})
            if not spec.kind.sized:
                wrong += _left_early(times)
            rows.append(make_row(spec, length, name, _slowest(times), wrong))
    return Report(
        spec=spec,
        where=where,
        rows=tuple(_with_ratios(rows, spec.baseline)),
        fit=_fit(spec, results),
        mistake=_mistake(spec, rows, mistakes),
        machine=machine,
    )


def _slowest(times: Sequence[Times]) -> list[float]:
    """Return the time of the slowest rank in each call."""
    return [max(end_s - start_s for start_s, end_s in call) for call in zip(*times, strict=True)]


def _left_early(times: Sequence[Times]) -> int:
    """Return the number of barrier calls that a rank left before another rank had entered."""
    return sum(
        min(end_s for _, end_s in call) < max(start_s for start_s, _ in call)
        for call in zip(*times, strict=True)
    )


def _with_ratios(rows: Sequence[Row], baseline: str | None) -> list[Row]:
    baseline_s = {row.size_bytes: row.seconds for row in rows if row.algorithm == baseline}
    return [
        dataclasses.replace(row, peer_over_this=baseline_s[row.size_bytes] / row.seconds)
        if baseline_s and row.algorithm != baseline
        else row
        for row in rows
    ]


def _fit(spec: Spec, results: Sequence[Mapping[str, Any]]) -> Fit | None:
    """Fit a link to rank 0's round trips; None with one size, which cannot separate latency from bandwidth."""
    if PING_PONG not in results[0]["sizes"][0] or len(spec.lengths) < 2:
        return None
    trips = [size[PING_PONG] for size in results[0]["sizes"]]
    seconds = [statistics.median(end_s - start_s for start_s, end_s in trip) / 2 for trip in trips]
    nbytes = [length * spec.itemsize for length in spec.lengths]
    link = fit_link(nbytes, seconds)
    return Fit(
        link=link,
        largest_error=largest_error(link, nbytes, seconds),
        size_bytes=tuple(nbytes),
        seconds=tuple(seconds),
    )


def _mistake(spec: Spec, rows: Sequence[Row], mistakes: Sequence[Sequence[Any]]) -> str:
    if mistakes:
        place, name, _, what = mistakes[0]
        size = format_bytes(spec.lengths[place] * spec.itemsize)
        return f"{spec.pattern} by {name} of {size} gave a wrong result: {what}"
    early = [row for row in rows if row.wrong]
    return f"{spec.pattern} by {early[0].algorithm} let a rank leave before all had entered" if early else ""


@contextmanager
def heard(on_byte: Callable[[int], None] | None) -> Iterator[str | None]:
    """Yield a path that a worker can open and write to. `on_byte` is called with the number of each byte, from 0."""
    if on_byte is None:
        yield None
        return
    read_fd, write_fd = os.pipe()
    thread = threading.Thread(target=_listen, args=(read_fd, on_byte), name="bench-progress", daemon=True)
    thread.start()
    try:
        yield f"/proc/{os.getpid()}/fd/{write_fd}"
    finally:
        # Close the last writer, because the workers have ended; the thread then reads the end of the pipe.
        os.close(write_fd)
        thread.join()
        os.close(read_fd)


def _listen(read_fd: int, on_byte: Callable[[int], None]) -> None:
    count = 0
    while data := os.read(read_fd, 64):
        for _ in data:
            on_byte(count)
            count += 1
