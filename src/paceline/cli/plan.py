"""`paceline plan`: finds the strategy, its parameters and the number of workers for a task and a cluster."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options
from paceline.cli.failures import REFUSED, exit_codes
from paceline.cli.files import check_directory
from paceline.cli.progress import ShowSearch, shown_search
from paceline.cli.table import print_table
from paceline.errors import ConfigurationError, RunError
from paceline.system import interrupts

if TYPE_CHECKING:
    from paceline.costs.calibration import Calibration
    from paceline.planner.plan import Plan
    from paceline.task.task import Task

_SHOWN = 12
_LIMITS = "Limits"

_Task = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:NAME]|gpt:…",
        help="Python file of the task, or a GPT of shapes only: gpt:layers=24,hidden=2048,heads=16,sequence=2048. "
        "It also takes vocabulary, key_heads, ffn, and dtype=bf16 (default) or fp32.",
    ),
]
_Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="NAME|FILE|local",
        help="Description of a cluster: a YAML file, or a name such as dgx-a100. local: workers on this machine.",
    ),
]
_Goal = Annotated[
    str | None,
    typer.Option(
        help="Quantity to minimize: time to target, step, cost or memory. Default: the time to target if the task "
        "has one, else step."
    ),
]
_Names = Annotated[
    str | None,
    typer.Option(
        "--strategies", metavar="NAME,…", help="Strategies to try. Default: all.", show_default=False
    ),
]
_Codecs = Annotated[
    str | None,
    typer.Option(
        metavar="CODEC,…",
        help="Codecs to try with the best configurations, such as bf16,powersgd-2.",
        show_default=False,
    ),
]
_Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N|MIN-MAX",
        help="Number of workers, or the smallest and the largest. Default: several, up to all of the cluster.",
        rich_help_panel=_LIMITS,
    ),
]
_Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Memory of a rank, such as 60GB. Default: the device's.", rich_help_panel=_LIMITS
    ),
]
_Price = Annotated[
    float | None,
    typer.Option(
        "--price-per-hour", help="Price of a host. Default: the description's.", rich_help_panel=_LIMITS
    ),
]
_Most = Annotated[
    int | None,
    typer.Option(help="Largest number of predictions.", rich_help_panel=_LIMITS, show_default=False),
]
_BatchSize = Annotated[
    int | None, typer.Option(help="Samples of a global batch, in place of the task's.", show_default=False)
]
_Calibration = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Measured costs of this machine, from paceline calibrate, for --cluster local. Default: measure them.",
        show_default=False,
    ),
]
_Explain = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="Compare two configurations term by term, by their rows: --explain 0,1.",
    ),
]
_Check = Annotated[
    bool, typer.Option("--check", help="Run the best three, and print predicted and measured times.")
]
_Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Save an HTML page in this directory (plan.html).")
]


def plan(
    task: _Task,
    cluster: _Cluster,
    hosts: options.Hosts = None,
    calibration: _Calibration = None,
    goal: _Goal = None,
    batch_size: _BatchSize = None,
    strategies: _Names = None,
    codecs: _Codecs = None,
    workers: _Workers = None,
    memory: _Memory = None,
    price_per_hour: _Price = None,
    most: _Most = None,
    seed: options.Seed = 0,
    explain: _Explain = None,
    check: _Check = False,
    out: _Out = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the best strategy, its parameters and the number of workers for a task on a cluster."""
    with exit_codes(), interrupts.recorded():
        if out is not None:
            check_directory("--out", out)
        places = None if explain is None else _places(explain)
        words: dict[str, Any] = {
            "goal": goal,
            "strategies": strategies,
            "workers": None if workers is None else _counts(workers),
            "memory": memory,
            "codecs": codecs or (),
            "price_per_hour": price_per_hour,
            "seed": seed,
        }
        words |= {} if most is None else {"most": most}
        if calibration is not None:
            words["calibration"] = _measured(calibration, cluster)
        with exit_codes(failure=REFUSED):
            given = _task(task, batch_size)
        found = _planned(given, cluster, hosts, words, check=check, quiet=quiet)
        if out is not None:
            _save(found, out)
        _print(found, as_json=as_json, places=places)


def _task(words: str, batch_size: int | None) -> Task:
    from paceline.task.files import load_task

    if words.startswith("gpt:"):
        from paceline.models.spec import gpt_of

        return gpt_of(words, batch_size)
    found = load_task(words)
    return found if batch_size is None else dataclasses.replace(found, batch_size=batch_size)


def _planned(
    task: Task, cluster: str, hosts: int | None, words: dict[str, Any], *, check: bool, quiet: bool
) -> Plan:
    import paceline as pl

    with _shown(quiet) as show:
        found = pl.plan(task, _cluster(cluster, hosts, words["workers"]), progress=show, **words)
        if check:
            found.check(progress=show)
    return found


def _shown(quiet: bool) -> AbstractContextManager[ShowSearch | None]:
    return shown_search(quiet=quiet)


def _measured(path: Path, cluster: str) -> Calibration:
    from paceline.costs.calibration import Calibration

    if cluster != "local":
        raise ConfigurationError(
            "--calibration", "must be omitted without --cluster local", path, "descriptions have their costs"
        )
    return Calibration.load(path)


def _cluster(name: str, hosts: int | None, workers: int | tuple[int, int] | None) -> Any:
    """Return the cluster. On this machine it has the largest number of workers that is wanted."""
    import paceline as pl

    if name == "local":
        if hosts is not None:
            raise ConfigurationError(
                "--hosts", "must be omitted with --cluster local", hosts, "this machine is one host"
            )
        most = workers[1] if isinstance(workers, tuple) else workers
        return pl.Local() if most is None else pl.Local(workers=most)
    return pl.load_cluster(name, hosts=hosts)


def _counts(text: str) -> int | tuple[int, int]:
    low, dash, high = text.partition("-")
    try:
        return (int(low), int(high)) if dash else int(low)
    except ValueError:
        raise ConfigurationError(
            "--workers", "must be a number, or two joined by -", text, "write 2-16"
        ) from None


def _places(text: str) -> tuple[int, int]:
    try:
        one, other = (int(part) for part in text.split(","))
    except ValueError:
        raise ConfigurationError("--explain", "must be two rows", text, "write 0,1") from None
    return one, other


def _save(found: Plan, out: Path) -> None:
    path = out / "plan.html"
    try:
        found.report(path, command=shlex.join(["paceline", *sys.argv[1:]]))
    except OSError as error:
        raise RunError(f"the plan succeeded, but could not be saved in {out}: {error}") from error
    typer.echo(f"saved {path}", err=True)


def _print(found: Plan, *, as_json: bool, places: tuple[int, int] | None) -> None:
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
        return
    table = found.table
    print_table(table.header, table.cells[:_SHOWN])
    if len(table) > _SHOWN:
        typer.echo(f"… and {len(table) - _SHOWN} more configurations")
    typer.echo("\n" + "\n".join(found.summary))
    if places is not None:
        difference = found.explain(*places)
        typer.echo("")
        print_table(difference.header, difference.cells)
        typer.echo(f"\n{difference.sentence}")
    if found.checked is not None:
        typer.echo(f"\n{found.checked.what}, on {found.checked.cluster}:\n")
        print_table(found.checked.header, found.checked.cells)
        typer.echo("\n" + "\n".join(found.checked.summary))
