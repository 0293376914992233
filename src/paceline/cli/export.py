"""`paceline export`: the model of a run or of a checkpoint, as one plain file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from paceline.cli.failures import exit_codes
from paceline.cli.files import check_writable
from paceline.errors import ConfigurationError

__all__ = ["export"]

Directory = Annotated[
    Path,
    Argument(
        metavar="DIR", help="A saved run, a checkpoint, or a folder of checkpoints: the newest that is whole."
    ),
]
Out = Annotated[
    Path, Option(metavar="FILE", help="The file: safetensors, by the names of the model's state dict.")
]


def export(directory: Directory, out: Out = Path("model.safetensors")) -> None:
    """Write the trained model as a plain state dict, which safetensors reads."""
    with exit_codes():
        check_writable("--out", out)
        from paceline.costs.units import format_bytes
        from paceline.inventory import model_of
        from paceline.tensor_files import write_tensors
        from paceline.writing import replacing

        found = model_of(directory)
        if not found.state:
            raise ConfigurationError(
                "DIR", "must hold a model", str(directory), "this run did no mathematics"
            )
        with replacing(out) as file:
            written = write_tensors(file, found.state)
        if found.skipped:
            typer.echo(f"not of the newest checkpoint, which is damaged: {found.skipped}", err=True)
        count = f"{len(found.state)} tensor{'s' * (len(found.state) > 1)}"
        typer.echo(f"{out}: {count}, {format_bytes(written.nbytes)}, of {found.source}")
