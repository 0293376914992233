"""Models that torch.compile compiles: before the run begins, off its clock, and by one rank of a host at a time.

Torch keeps what it compiles on disk. So the second rank of a host, and the next run, find it there.
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
from paceline.replica.samples import Samples

if TYPE_CHECKING:
    from paceline.replica.replica import Replica

__all__ = ["compiled", "is_compiled", "warm_up"]


def compiled(module: nn.Module) -> Any:
    """What torch.compile makes of a module; of several, one module of what it makes of each."""
    if type(module) is nn.ModuleDict:
        each_compiled: dict[str, Any] = {name: torch.compile(each) for name, each in module.items()}
        return nn.ModuleDict(each_compiled)
    return torch.compile(module)  # not `module.compile()`, which does nothing to a Sequential


def is_compiled(module: nn.Module) -> bool:
    """Whether a module, or one inside it, compiles itself when it is first called."""
    # The class is not imported for its name: that takes seconds.
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
    """Let a compiled model be compiled for batches like these, and for an evaluation. Nothing else changes."""
    if not is_compiled(replica.called):
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
