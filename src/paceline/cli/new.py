"""`paceline new`: a task file to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from paceline.cli.failures import exit_codes
from paceline.cli.files import check_writable
from paceline.errors import ConfigurationError, RunError

TEMPLATE = '''"""A task for Paceline. It can be trained as it is; replace the model and the data with your own.

    paceline check {name}
    paceline train {name} --strategy all-reduce --workers 4
    paceline compare {name} --strategies single,all-reduce,async
"""

import torch
from torch import nn

import paceline as pl


def model():
    """Called on each worker with the run's seed: all workers start with the same weights."""
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))


def data(samples, seed):
    """Return inputs and targets (or any map-style Dataset). Here: points, and the nearest of three centres."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(samples, 20, generator=generator)
    return inputs, torch.cdist(inputs, centres).argmin(1)


task = pl.Task(
    model=model,
    data=lambda: data(3000, seed=1),
    loss=nn.functional.cross_entropy,  # function of outputs and targets; must return the mean over samples
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    batch_size=64,  # samples of one step, over all workers
    test=lambda: data(600, seed=2),  # data for the metric
    metric="accuracy",  # or a function of outputs and targets
    target=0.93,  # value of the metric to reach
    # clip_norm=1.0,
    # schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5),  # stepped after every update
)
'''

NewFile = Annotated[Path, Argument(metavar="FILE", help="Python file to write.")]
Force = Annotated[bool, Option("--force", help="Overwrite an existing file.")]


def new(file: NewFile, force: Force = False) -> None:
    """Write a commented task file to start from. It can be trained as it is."""
    with exit_codes():
        if file.suffix != ".py":
            raise ConfigurationError("FILE", "must end in .py", str(file), f"write {file.stem}.py")
        check_writable("FILE", file)
        if file.exists() and not force:
            raise ConfigurationError("FILE", "must not exist yet", str(file), "use another name, or --force")
        name = shlex.quote(str(file))
        try:
            file.write_text(TEMPLATE.replace("{name}", name), encoding="utf-8")
        except OSError as error:
            raise RunError(f"{file} could not be written: {error}") from error
        typer.echo(f"wrote {file}; next: paceline check {name}")
