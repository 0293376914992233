"""Models compiled by torch.compile. They are compiled before the run's clock starts, by one rank per host at a time.

Torch caches compiled code on disk, so the other ranks of a host and later runs use the cache.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.context import Batch
from paceline.data.samples import Samples

if TYPE_CHECKING:
    from paceline.model.replica import Replica


def compiled(module: nn.Module) -> Any:
    """Return the compiled module. Several models become one module of compiled modules."""
    if type(module) is nn.ModuleDict:
        each_compiled: dict[str, Any] = {name: torch.compile(each) for name, each in module.items()}
        return nn.ModuleDict(each_compiled)
    return torch.compile(module)  # not `module.compile()`, which has no effect on a Sequential


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module or one of its submodules is compiled on its first call."""
    # Importing the class for isinstance would take seconds.
    return any(
        type(layer).__name__ == "OptimizedModule" or layer._compiled_call_impl is not None
        for layer in module.modules()
    )


def warm_up(
    replica: Replica,
    batches: Sequence[Batch],
    samples: Samples | None,
    evaluation: Callable[[], object] | None = None,
) -> None:
    """Compile a model for batches like this one and for evaluation. The model's state does not change. This
    function does nothing if the model is not to be compiled.
    """
    if not replica.task.compile and not is_compiled(replica.module):
        return
    turns = len(replica.task.turns) or 1
    with _alone_on_this_host():
        for batch in {(batch.count, batch.number % turns): batch for batch in batches}.values():
            assert samples is not None
            replica.compute(batch, samples)
            replica.undo_buffers()
        if evaluation is not None:
            evaluation()
    replica.gradient.zero_()


@contextmanager
def _alone_on_this_host() -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / f"paceline-compiling-{os.getuid()}"
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
