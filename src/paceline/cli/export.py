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
Out = Annotated[
    Path | None,
    Option(metavar="PATH", help="Output. Default: model.safetensors, or the folder model-dcp with --dcp."),
]
Dcp = Annotated[
    bool, Option("--dcp", help="Write a folder of torch.distributed.checkpoint, for FSDP and torchtitan.")
]


def export(directory: Directory, out: Out = None, dcp: Dcp = False) -> None:
    """Write the state dict of a trained model to a safetensors file, or to a folder for torch.distributed."""
    with exit_codes():
        place = out or Path("model-dcp" if dcp else "model.safetensors")
        if not dcp:
            check_writable("--out", place)
        from paceline.costs.units import format_bytes
        from paceline.files.distributed_checkpoint import write_distributed_checkpoint
        from paceline.files.tensor_files import write_tensors
        from paceline.files.writing import replacing
        from paceline.runs.inventory import model_of

        found = model_of(directory)
        if not found.state:
            raise ConfigurationError(
                "DIR", "must hold a model", str(directory), "this run had no tensor math"
            )
        if dcp:
            write_distributed_checkpoint(place, found.state)
        else:
            with replacing(place) as file:
                write_tensors(file, found.state)
        if found.skipped:
            typer.echo(f"skipped the newest checkpoint, which is damaged: {found.skipped}", err=True)
        count = f"{len(found.state)} tensor{'s' * (len(found.state) > 1)}"
        nbytes = sum(tensor.nbytes for tensor in found.state.values())
        typer.echo(f"{place}: {count}, {format_bytes(nbytes)}, from {found.source}")
