"""`paceline partition`: how a task's data is divided among clients, as a table and a plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from paceline.cli import options
from paceline.cli.failures import REFUSED, exit_codes
from paceline.cli.files import check_picture, save_picture
from paceline.cli.table import print_table
from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from paceline.data.partitions.facts import Facts

_MOST_ROWS, _MOST_COLUMNS = 50, 20

Clients = Annotated[int, Option(help="Number of clients.")]
Kind = Annotated[str, Option("--partition", help="iid, dirichlet, or shards by label.")]
Alpha = Annotated[float, Option(help="Parameter of the Dirichlet distribution; smaller is more uneven.")]
ShardsPerClient = Annotated[int, Option(help="Shards of label-sorted data for each client.")]
Seed = Annotated[int, Option(help="Seed of the partition (partition_seed of the strategies).")]
AllowEmpty = Annotated[bool, Option("--allow-empty", help="Allow clients without data.")]
Plot = Annotated[Path | None, Option(metavar="FILE", help="Plot the labels of each client, as SVG.")]


def partition(
    file: options.File,
    clients: Clients = 10,
    kind: Kind = "iid",
    alpha: Alpha = 0.5,
    shards_per_client: ShardsPerClient = 2,
    seed: Seed = 0,
    allow_empty: AllowEmpty = False,
    plot: Plot = None,
    as_json: options.Json = False,
) -> None:
    """Show how the federated strategies divide a task's data: the labels of each client, and their skew."""
    with exit_codes():
        if clients < 1:
            raise ConfigurationError("--clients", "must be at least 1", clients)
        if plot is not None:
            check_picture("--plot", plot)
        facts = _draw(file, clients, kind, alpha, shards_per_client, seed, allow_empty)
        if plot is not None:
            _plot(facts, file, plot)
        if as_json:
            typer.echo(json.dumps(facts.as_dict()))
        else:
            _print(facts)


def _draw(
    file: str,
    clients: int,
    kind: str,
    alpha: float,
    shards_per_client: int,
    seed: int,
    allow_empty: bool,
) -> Facts:
    from paceline.data.partitions import Partition

    chosen = Partition(
        kind=kind, alpha=alpha, shards_per_client=shards_per_client, allow_empty=allow_empty, seed=seed
    )
    from paceline.data.partitions.facts import facts_of
    from paceline.data.samples import Samples
    from paceline.task.files import load_task

    with exit_codes(failure=REFUSED):
        data = load_task(file).build_data()
    return facts_of(chosen, Samples(data).read_targets(), clients)


def _plot(facts: Facts, file: str, plot: Path) -> None:
    from paceline.data.partitions.picture import draw

    title = f"{Path(file).stem}: {facts.sizes.sum():,} samples, {facts.clients} clients"
    save_picture(draw(facts, title), plot)


def _print(facts: Facts) -> None:
    columns = [str(label) for label in facts.labels] if len(facts.labels) <= _MOST_COLUMNS else []
    header = ("client", "samples", *columns, *["labels", "distance"] * bool(facts.labels))
    shown = min(facts.clients, _MOST_ROWS)
    print_table(header, [_row(facts, client, bool(columns)) for client in range(shown)])
    if shown < facts.clients:
        typer.echo(f"… and {facts.clients - shown} more clients; --json lists all")
    typer.echo()
    lines = {"partition": facts.partition, "samples": _sizes(facts)}
    if facts.labels:
        lines["skew"] = (
            f"{facts.skew:.3f}: mean distance of a client's labels from all labels (0 equal, 1 disjoint)"
        )
    for name, words in lines.items():
        typer.echo(f"{name:<11}{words}")


def _row(facts: Facts, client: int, with_labels: bool) -> list[str]:
    counts, size = facts.counts[client], facts.sizes[client]
    row = [str(client), str(size)]
    if with_labels:
        row += [str(count) if count else "" for count in counts]
    if facts.labels:
        row += [str((counts > 0).sum()), f"{facts.distances[client]:.3f}" if size else ""]
    return row


def _sizes(facts: Facts) -> str:
    sizes = facts.sizes
    words = f"{sizes.sum()}; {sizes.min()} to {sizes.max()} per client, {sizes.mean():.1f} on average"
    return words + f"; {len(facts.empty)} clients have none" * bool(facts.empty)
