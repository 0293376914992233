"""Diagnosis of a stalled run. Set `PACELINE_DUMP=folder` in a rank's environment. A rank that receives SIGUSR1 then
writes its stacks, its operations in flight, and the state of its links to a file in that folder."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext

VARIABLE = "PACELINE_DUMP"


def begin(context: ProcessContext) -> None:
    """Install the signal handler, if the environment variable is set."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    file = Path(folder, f"rank-{context.rank}-{os.getpid()}.txt").open("a")  # noqa: SIM115 (for the rank's life)
    signal.signal(signal.SIGUSR1, lambda *_: _write(context, file))
    # faulthandler writes the stacks inside the signal handler, even if the interpreter cannot run the Python
    # handler above.
    faulthandler.register(signal.SIGUSR1, file=file, chain=True)


def _write(context: ProcessContext, file: TextIO) -> None:
    lines = [f"rank {context.rank} in step {context.step}: {context.board.activity(context.rank)}"]
    lines += [f"under way: {operation}" for operation in context.waits.under_way]
    lines += context.describe_links()
    file.write("\n".join(lines) + "\n")
    file.flush()
