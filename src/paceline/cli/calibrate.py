"""`paceline calibrate`: measures the costs of this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from paceline.cli import options
from paceline.cli.failures import REFUSED, exit_codes
from paceline.cli.files import check_writable
from paceline.errors import ConfigurationError
from paceline.system import interrupts

if TYPE_CHECKING:
    from paceline.costs.calibration import Calibration

File = Annotated[
    str | None,
    Argument(
        metavar="[FILE[:NAME]]", help="Python file of a task. Its gradients and updates are measured too."
    ),
]
Out = Annotated[Path | None, Option(metavar="FILE", help="Write the calibration to this file, as JSON.")]
Seconds = Annotated[float, Option(help="Time limit. Each quantity is usually measured three times at least.")]


def calibrate(
    file: File = None,
    workers: options.Workers = 4,
    threads: options.Threads = None,
    seconds: Seconds = 60.0,
    out: Out = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure this machine: links, gradients of a task, and ranks that share cores. `--calibration` uses it."""
    with exit_codes(), interrupts.recorded():
        if out is not None:
            check_writable("--out", out)
        if not 0 < seconds < 86_400:
            raise ConfigurationError(
                "--seconds", "must be above 0 and at most a day", seconds, "60 is the default"
            )
        found = _calibrated(file, workers, threads, seconds, quiet)
        if out is not None:
            found.save(out)
            typer.echo(f"saved in {out}", err=True)
        typer.echo(json.dumps(found.as_dict()) if as_json else str(found))


def _calibrated(
    file: str | None, workers: int, threads: int | None, seconds: float, quiet: bool
) -> Calibration:
    import paceline as pl

    with exit_codes(failure=REFUSED):
        task = None if file is None else pl.load_task(file)
    cluster = pl.Local(workers=workers, threads=threads)
    with _shown(quiet) as show:
        return pl.calibrate(cluster, task, seconds=seconds, progress=show)


@contextmanager
def _shown(quiet: bool) -> Iterator[Callable[[str], None] | None]:
    """Yield the function to call with the name of each measurement: shown on stderr. Or None."""
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield lambda name: print(f"measuring {name}", file=sys.stderr, flush=True)
    else:
        from rich.console import Console

        with Console(stderr=True).status("measuring") as status:
            yield lambda name: status.update(f"measuring {name}")
