"""`paceline bench`: the time of each algorithm of a pattern, on this machine or on simulated links."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from paceline.cli import options
from paceline.cli.cluster import ClusterOptions
from paceline.cli.failures import exit_codes
from paceline.cli.files import check_writable
from paceline.cli.table import print_table
from paceline.errors import ConfigurationError, RunError
from paceline.system import interrupts

if TYPE_CHECKING:
    from paceline.bench.report import Report, Row
    from paceline.bench.spec import Spec

Pattern = Annotated[
    str,
    Argument(
        help="all-reduce, broadcast, reduce, all-gather, reduce-scatter, all-to-all or barrier.",
        metavar="PATTERN",
    ),
]
Workers = Annotated[int, Option(help="Number of ranks.")]
Algorithms = Annotated[
    str | None, Option(metavar="NAME,…", help="Algorithms to compare. Default: all of the pattern.")
]
Begin = Annotated[str, Option("--begin", "-b", metavar="BYTES", help="Smallest size.")]
End = Annotated[str, Option("--end", "-e", metavar="BYTES", help="Largest size.")]
Factor = Annotated[float, Option("--factor", "-f", help="Ratio of each size to the previous one.")]
Dtype = Annotated[str, Option(help="float32, float64, bfloat16, float16 or int64.")]
Repeat = Annotated[
    int | None, Option(help="Timed calls of each algorithm and size. Default: from 40 (small) to 5 (large).")
]
Against = Annotated[
    str | None,
    Option(metavar="BASELINE", help="Baseline to time in the same run, with ratios: gloo."),
]
Plot = Annotated[Path | None, Option(metavar="FILE", help="Plot bus bandwidth over size, as SVG.")]


def bench(
    pattern: Pattern,
    workers: Workers = 4,
    algorithms: Algorithms = None,
    begin: Begin = "4K",
    end: End = "64M",
    factor: Factor = 4.0,
    dtype: Dtype = "float32",
    repeat: Repeat = None,
    against: Against = None,
    simulate: options.Simulate = False,
    link: options.Link = None,
    bandwidth: options.Bandwidth = None,
    latency: options.Latency = None,
    plot: Plot = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time each algorithm of a communication pattern at each size.

    Results are verified, and the fastest algorithm is marked.
    """
    with exit_codes(), interrupts.recorded():
        words = _cluster_options(workers, simulate, link, bandwidth, latency)
        from paceline.bench.spec import Spec
        from paceline.costs.units import parse_bytes

        spec = Spec(
            pattern=pattern,
            workers=workers,
            algorithms=_names(algorithms),
            begin_bytes=parse_bytes(begin, "-b"),
            end_bytes=parse_bytes(end, "-e"),
            factor=factor,
            dtype=dtype,
            repeat=repeat,
            against=against,
            simulated=simulate,
            shares_memory=link != "tcp",
        )
        _check_plot(plot, spec)
        _show(_benched(spec, words, quiet), plot, as_json)


def _cluster_options(
    workers: int, simulate: bool, link: str | None, bandwidth: str | None, latency: str | None
) -> ClusterOptions:
    return ClusterOptions(
        workers=workers,
        slow=(),
        delay=(),
        deadline=None,
        simulate=simulate,
        link=link,
        bandwidth=bandwidth,
        latency=latency,
        compute=None,
    )


def _names(algorithms: str | None) -> tuple[str, ...]:
    if algorithms is None:
        return ()
    names = tuple(name.strip() for name in algorithms.split(","))
    if not all(names):
        raise ConfigurationError("--algorithms", "must be names separated by commas", algorithms)
    return names


def _check_plot(plot: Path | None, spec: Spec) -> None:
    """Reject a plot that could not be drawn or written, before the bench starts."""
    if plot is None:
        return
    if not spec.kind.sized:
        raise ConfigurationError("--plot", "needs a pattern with sizes", spec.pattern, "omit it")
    if not spec.kind.bus_factor(spec.workers):
        raise ConfigurationError("--workers", "must be at least 2 for a plot of bus bandwidth", spec.workers)
    check_writable("--plot", plot)


def _benched(spec: Spec, words: ClusterOptions, quiet: bool) -> Report:
    from paceline.bench.measure import measure
    from paceline.bench.memory import check_memory
    from paceline.bench.predict import predict
    from paceline.clusters.local.local import Local
    from paceline.clusters.simulated.simulated import Simulated
    from paceline.system.environment import available_bytes

    cluster = words.cluster()
    if isinstance(cluster, Local):
        check_memory(spec, available_bytes())
    with _shown_sizes(spec, quiet) as on_size:
        if isinstance(cluster, Simulated):
            return predict(spec, cluster, on_size)
        assert isinstance(cluster, Local)
        return measure(spec, cluster, on_size)


@contextmanager
def _shown_sizes(spec: Spec, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Yield a progress function to call at the start of each size.

    It draws a bar or a line on stderr. None if quiet.
    """
    from paceline.costs.units import format_bytes

    sizes = [format_bytes(length * spec.itemsize) for length in spec.lengths]
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield lambda place: print(
            f"size {place + 1}/{len(sizes)}  {sizes[place]}", file=sys.stderr, flush=True
        )
    else:
        with _bar(sizes) as show:
            yield show


@contextmanager
def _bar(sizes: Sequence[str]) -> Iterator[Callable[[int], None]]:
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("size"), rich.MofNCompleteColumn(), rich.BarColumn())
    what = rich.TextColumn("{task.description}", markup=False)
    # Drawn at the start of a size, before its timed calls: a drawing thread would disturb them.
    with rich.Progress(
        *columns, what, console=Console(stderr=True), transient=True, auto_refresh=False
    ) as bar:
        row = bar.add_task("starting the workers", total=len(sizes))
        bar.refresh()

        def show(place: int) -> None:
            bar.update(row, completed=place, description=sizes[place], refresh=True)

        yield show


def _show(report: Report, plot: Path | None, as_json: bool) -> None:
    if plot is not None:
        _save_plot(report, plot)
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    else:
        _print_report(report)
    if report.mistake:
        raise RunError(report.mistake)


def _save_plot(report: Report, plot: Path) -> None:
    from paceline.bench.plot import draw

    try:
        plot.write_text(draw(report), encoding="utf-8")
    except OSError as error:
        raise RunError(f"the bench succeeded, but its plot could not be saved: {error}") from error


def _print_report(report: Report) -> None:
    from paceline.bench.texts import bandwidth_unit, facts

    sized, against = report.spec.kind.sized, report.spec.against
    typer.echo(report.spec.pattern + f" of {report.spec.dtype}" * sized + f" on {report.where}\n")
    unit, scale = bandwidth_unit(report)
    header = ["size"] * sized + ["algorithm", "time"] + [f"algbw {unit}", f"busbw {unit}"] * sized
    header += [f"{against}/this"] * bool(against) + [""]
    print_table(header, [_cells(row, report, scale) for row in report.rows])
    lines = facts(report)
    width = max(map(len, lines)) + 2
    typer.echo("\n" + "\n".join(f"{name:<{width}}{value}" for name, value in lines.items()))


def _cells(row: Row, report: Report, scale: float) -> list[str]:
    from paceline.costs.units import format_bytes, format_seconds

    sized, winner = report.spec.kind.sized, report.winners.get(row.size_bytes)
    bandwidths = [_three_digits(speed / scale) for speed in (row.algbw_bytes_per_s, row.busbw_bytes_per_s)]
    cells = [format_bytes(row.size_bytes)] * sized + [row.algorithm, format_seconds(row.seconds)]
    cells += bandwidths * sized
    if report.spec.baseline:
        cells.append("" if row.peer_over_this is None else f"{row.peer_over_this:.2f}")
    verdict = f"WRONG in {row.wrong} calls" if row.wrong else "fastest" if row.algorithm == winner else ""
    return [*cells, verdict]


def _three_digits(value: float) -> str:
    """Format without an exponent, so that the numbers in a column are easy to compare."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"
