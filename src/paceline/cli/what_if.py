"""`paceline what-if`: predicts a saved run with a change, or compares the ranks of profiler traces."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from paceline.cli.failures import exit_codes
from paceline.cli.options import Json
from paceline.errors import ConfigurationError

Places = Annotated[
    list[Path],
    Argument(
        metavar="RUN|TRACE…",
        help="Directory of a run saved by `train --out`; or traces of torch.profiler, one file for each rank.",
    ),
]
WithoutSlow = Annotated[int | None, Option(metavar="RANK", help="This rank computes as fast as the others.")]
Bandwidth = Annotated[str | None, Option(help="Bandwidth of each link, such as 10Gbps.")]
Latency = Annotated[str | None, Option(help="Latency of each link, such as 50us.")]
Workers = Annotated[int | None, Option(help="Number of ranks that compute gradients.", show_default=False)]
Strategy = Annotated[str | None, Option(help="Another strategy, such as k-sync:k=3.")]


def what_if(
    places: Places,
    without_slow: WithoutSlow = None,
    bandwidth: Bandwidth = None,
    latency: Latency = None,
    workers: Workers = None,
    strategy: Strategy = None,
    as_json: Json = False,
) -> None:
    """Predict the step of a saved run with a change. Of profiler traces, find the slow rank and what it costs."""
    with exit_codes():
        changes = {
            "without_slow": without_slow,
            "bandwidth": bandwidth,
            "latency": latency,
            "workers": workers,
            "strategy": strategy,
        }
        if len(places) == 1 and (places[0] / "run.json").exists():
            _of_run(places[0], changes, as_json)
        else:
            _of_traces(places, changes, as_json)


def _of_run(place: Path, changes: dict[str, Any], as_json: bool) -> None:
    from paceline.analysis.what_if.simulate import what_if as predicted
    from paceline.runs.run import Run

    found = predicted(Run.load(place), **changes)
    typer.echo(json.dumps(found.as_dict()) if as_json else str(found))


def _of_traces(places: list[Path], changes: dict[str, Any], as_json: bool) -> None:
    from paceline.analysis.what_if.profiler import read_profiles, what_if_profiled

    missing = [str(place) for place in places if not place.exists()]
    if missing:
        raise ConfigurationError("RUN", "must be a saved run or traces", missing[0], "there is no such file")
    profiles = read_profiles(places)
    given = [f"--{name.replace('_', '-')}" for name, value in changes.items() if value is not None]
    if given:
        remedy = "omit it: traces of torch.profiler show no links and no strategy"
        raise ConfigurationError(given[0], "needs a run saved by paceline", str(places[0]), remedy)
    found = what_if_profiled(profiles)
    typer.echo(json.dumps(dataclasses.asdict(found)) if as_json else str(found))
