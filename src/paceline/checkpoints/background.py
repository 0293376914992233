"""Checkpoints beside the training: a copy in memory while it waits, the disk while it goes on."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import threading
import time
from collections.abc import Callable
from threading import Thread

from paceline.checkpoints.shard import Shard
from paceline.checkpoints.store import Store
from paceline.tensor_files import Arena

__all__ = ["BackgroundWriter"]

_log = logging.getLogger("paceline")

_NICER = 10
"""By so much the thread that writes stands back behind the training."""


class BackgroundWriter:
    """Writes what one rank holds, in a thread, one checkpoint at a time.

    A checkpoint that cannot be written is told and is not the end of the training. `tell` is called with the words, by
    the reporter alone, in the thread or in `submit`; left out, they are logged.
    """

    def __init__(self, store: Store, *, tell: Callable[[str], None] | None = None, since: int = 0) -> None:
        self._store = store
        self._tell = tell or _log.warning
        self._since = since
        self._under_way = 0
        self._thread: Thread | None = None
        self._preparing: Thread | None = None
        self._arena = Arena()
        self.blocked_s = 0.0
        """How long callers of `submit` have waited, in all."""

    @property
    def since(self) -> int:
        """The step of the newest finished checkpoint, or of the one that the run began with.

        A rank that is not the reporter knows of its own file alone.
        """
        return self._since

    def prepare(self, shard: Shard) -> None:
        """Get the memory for such a shard, in the background: the first `submit` is then as quick as the others."""
        sized = list(shard.tensors.values())
        self._preparing = Thread(
            target=self._arena.reserve, args=(sized,), name="checkpoint memory", daemon=True
        )
        self._preparing.start()

    def submit(self, step: int, shard: Shard, commit: Callable[[], object] | None = None) -> bool:
        """Copy the shard, which may change when this returns, and write the copy in the background.

        `commit` is the reporter's: called in the thread when its own file is written (`Store.commit`). False: the last
        checkpoint is not done yet, so this one is left out.
        """
        if self._thread is not None and self._thread.is_alive():
            late = f"that of step {self._under_way} is not done yet"
            self._store.skip(step, shard.rank, late)
            if commit is not None:
                self._complain(f"step {step} gets none, for {late}; checkpoints are due too often here")
            return False
        began_s = time.monotonic()
        if self._preparing is not None:
            self._preparing.join()
        tensors, facts = self._arena.copies(shard.tensors), copy.deepcopy(shard.facts)
        kept = Shard(rank=shard.rank, tensors=tensors, facts=facts)
        self._under_way = step
        self._thread = Thread(target=self._write, args=(step, kept, commit), name="checkpoint", daemon=True)
        self._thread.start()
        self.blocked_s += time.monotonic() - began_s
        return True

    def finish(self, deadline_s: float) -> bool:
        """Wait for what is being written. Tells whether it is done."""
        if self._thread is None:
            return True
        self._thread.join(deadline_s)
        if self._thread.is_alive():
            self._complain(f"that of step {self._under_way} was not done in {deadline_s:g} s")
            return False
        return True

    def _write(self, step: int, shard: Shard, commit: Callable[[], object] | None) -> None:
        with contextlib.suppress(
            OSError
        ):  # the training goes first where cores are short; Linux knows threads here
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + _NICER)
        try:
            self._store.write(step, shard)
            if commit is not None:
                commit()
            self._since = step
        except Exception as error:  # whatever it is, the training goes on
            if commit is not None:  # the reporter hears of the others' failures too, and one voice is enough
                self._store.abandon(step)
                self._complain(str(error))

    def _complain(self, reason: str) -> None:
        since = f"step {self._since}" if self._since else "the beginning"
        self._tell(f"no new checkpoint since {since}: {reason}")
