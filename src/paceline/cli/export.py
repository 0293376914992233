"""`paceline export`: the model of a run or of a checkpoint as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from paceline.cli.failures import exit_codes
from paceline.cli.files import check_writable
from paceline.errors import ConfigurationError

Directory = Annotated[
    Path,
    Argument(
        metavar="DIR", help="Saved run, checkpoint, or folder of checkpoints (the newest intact one is used)."
    ),
]
Out = Annotated[Path, Option(metavar="FILE", help="Output file, in safetensors format.")]


def export(directory: Directory, out: Out = Path("model.safetensors")) -> None:
    """Write the state dict of a trained model to a safetensors file."""
    with exit_codes():
        check_writable("--out", out)
        from paceline.costs.units import format_bytes
        from paceline.files.tensor_files import write_tensors
        from paceline.files.writing import replacing
        from paceline.runs.inventory import model_of

        found = model_of(directory)
        if not found.state:
            raise ConfigurationError(
                "DIR", "must hold a model", str(directory), "this run had no tensor math"
            )
        with replacing(out) as file:
            written = write_tensors(file, found.state)
        if found.skipped:
            typer.echo(f"skipped the newest checkpoint, which is damaged: {found.skipped}", err=True)
        count = f"{len(found.state)} tensor{'s' * (len(found.state) > 1)}"
        typer.echo(f"{out}: {count}, {format_bytes(written.nbytes)}, from {found.source}")
