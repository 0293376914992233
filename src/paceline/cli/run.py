"""`paceline run`: starts a script with its own training loop once for each rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from paceline.cli import options
from paceline.cli.failures import exit_codes
from paceline.cli.files import check_directory
from paceline.errors import ConfigurationError, UnknownNameError

if TYPE_CHECKING:
    from paceline.loop.settings import LoopSettings

Script = Annotated[Path, Argument(help="Script that calls pl.prepare.")]
Words = Annotated[list[str] | None, Argument(help="Arguments of the script.")]
Chosen = Annotated[
    str | None, Option(help="Strategy, such as k-sync:k=3. Default: that of the script, or all-reduce.")
]
Folder = Annotated[Path | None, Option(metavar="DIR", help="Save the run, its trace and its report here.")]


def run(
    script: Script,
    arguments: Words = None,
    workers: options.Workers = 4,
    strategy: Chosen = None,
    link: options.Link = None,
    ray: options.Ray = None,
    slow: options.Slow = None,
    delay: options.Delay = None,
    deadline: options.Deadline = None,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    out: Folder = None,
) -> None:
    """Run a script with its own training loop on several workers of this machine, or of a Ray cluster."""
    from paceline.clusters.launched.launched import LINKS
    from paceline.costs.stragglers import parse_delays, parse_slow
    from paceline.costs.units import parse_seconds
    from paceline.loop.settings import DEADLINE_S, LoopSettings

    with exit_codes():
        if not script.is_file():
            raise ConfigurationError("script", "must be a file", str(script))
        if out is not None:
            check_directory("--out", out)
        slow_words, delays = ",".join(slow or ()), tuple(delay or ())
        if slow_words:
            parse_slow(slow_words)
        parse_delays(delays)
        if link is not None and link not in LINKS:
            raise UnknownNameError("--link", link, LINKS)
        settings = LoopSettings(
            strategy=strategy,
            slow=slow_words,
            delay=delays,
            deadline_s=DEADLINE_S if deadline is None else parse_seconds(deadline, "--deadline"),
            threads=threads,
            seed=seed,
            out=None if out is None else str(out.resolve()),
            link=link or LINKS[0],
        )
        code = _run([str(script.resolve()), *(arguments or ())], workers, settings, ray)
    raise typer.Exit(code)


def _run(command: list[str], workers: int, settings: LoopSettings, ray: str | None) -> int:
    """Run the command on each rank. `ray` is the address of a Ray cluster; empty for a private one, None for none."""
    from paceline.loop.launch import ScriptProcesses
    from paceline.strategies import parse

    if workers < 1:
        raise ConfigurationError("--workers", "must be at least 1", workers)
    ranks = len(parse(settings.strategy or "all-reduce").roles(workers))
    if ray is not None:
        return _run_on_ray(command, ranks, settings, ray)
    with ScriptProcesses([sys.executable, *command], ranks, settings) as processes:
        return processes.wait()


def _run_on_ray(command: list[str], ranks: int, settings: LoopSettings, address: str) -> int:
    from paceline.clusters.ray.ray import Ray
    from paceline.loop.ray_scripts import RayScripts

    with RayScripts(command, ranks, settings, Ray(address or None, workers=ranks)) as scripts:
        return scripts.wait()
