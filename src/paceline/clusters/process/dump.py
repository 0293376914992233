"""What a rank was doing, for whoever looks into a run that stands still: with `PACELINE_DUMP=folder` in its environment
a rank that gets SIGUSR1 writes its stacks, what it has under way, and the state of its links, to a file there."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext

__all__ = ["VARIABLE", "begin"]

VARIABLE = "PACELINE_DUMP"


def begin(context: ProcessContext) -> None:
    """Listen for the signal, if the environment says so."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    file = Path(folder, f"rank-{context.rank}-{os.getpid()}.txt").open("a")  # noqa: SIM115 (for the rank's life)
    signal.signal(signal.SIGUSR1, lambda *_: _write(context, file))
    # The stacks come from the signal itself, even where the interpreter does not get to run the handler above.
    faulthandler.register(signal.SIGUSR1, file=file, chain=True)


def _write(context: ProcessContext, file: TextIO) -> None:
    lines = [f"rank {context.rank} in step {context.step}: {context.board.activity(context.rank)}"]
    lines += [f"under way: {operation}" for operation in context.waits.under_way]
    lines += context.describe_links()
    file.write("\n".join(lines) + "\n")
    file.flush()
