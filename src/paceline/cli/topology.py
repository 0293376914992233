"""`paceline topology`: statistics of a graph of peers, and a plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from paceline.cli import options
from paceline.cli.failures import exit_codes
from paceline.cli.files import check_picture, save_picture
from paceline.cli.table import print_table

if TYPE_CHECKING:
    from paceline.schedules.topologies import Facts

Name = Annotated[
    str,
    Argument(
        metavar="TOPOLOGY",
        help="ring, complete, star, path, grid, torus, hypercube, exponential, one-peer-exponential, "
        "random-regular:degree=4 or erdos-renyi:p=0.2; a file of edges, two numbers per line; or a .npy or .csv file "
        "of weights.",
    ),
]
Workers = Annotated[
    int | None, Option(help="Number of peers. A file sets the number itself.", show_default=False)
]
Weights = Annotated[str, Option(help="metropolis, uniform, or a .npy or .csv file.")]
Seed = Annotated[int, Option(help="Seed of random graphs.")]
Bytes = Annotated[
    str, Option("--bytes", metavar="BYTES", help="Size of the parameters that a peer sends to a neighbour.")
]
AllowDisconnected = Annotated[
    bool, Option("--allow-disconnected", help="Accept a graph that cannot reach consensus.")
]
Plot = Annotated[Path | None, Option(metavar="FILE", help="Plot the graph, as SVG.")]


def topology(
    name: Name,
    workers: Workers = None,
    weights: Weights = "metropolis",
    seed: Seed = 0,
    size: Bytes = "1M",
    allow_disconnected: AllowDisconnected = False,
    plot: Plot = None,
    as_json: options.Json = False,
) -> None:
    """Show a topology for decentralized training: degree, diameter, spectral gap and traffic."""
    with exit_codes():
        if plot is not None:
            check_picture("--plot", plot)
        from paceline.costs.units import parse_bytes
        from paceline.schedules.topologies import build_topology, facts_of
        from paceline.schedules.topologies.picture import check_drawable, draw

        model_bytes = parse_bytes(size, "--bytes")
        built = build_topology(name, workers, seed, weights=weights, allow_disconnected=allow_disconnected)
        if plot is not None:
            check_drawable(built)
        facts = facts_of(built, model_bytes)
        if plot is not None:
            save_picture(draw(built, facts), plot)
        if as_json:
            typer.echo(json.dumps(facts.as_dict()))
        else:
            print_table((f"{facts.topology}, {facts.peers} peers", ""), _rows(facts))


def _rows(facts: Facts) -> list[tuple[str, str]]:
    from paceline.costs.units import format_bytes

    a_period = f" a period of {facts.period} steps" if facts.period > 1 else ""
    steps, diameter = facts.steps_to_consensus, facts.diameter
    return [
        ("degree", facts.degree + (" a step, changing" if facts.period > 1 else "")),
        ("edges", "one way" if facts.directed else "both ways"),
        ("diameter", "none: some peers cannot reach each other" if diameter is None else str(diameter)),
        ("spectral gap", f"{facts.spectral_gap:.6g}{a_period}"),
        ("steps to consensus", "never" if steps is None else f"{steps}, until the distance is a thousandth"),
        ("bytes a step, busiest peer", format_bytes(facts.bytes_per_step_and_peer)),
        ("bytes a step, all peers", format_bytes(facts.bytes_per_step)),
    ]
