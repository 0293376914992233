"""Checkpoints in the background: training waits for a copy in memory, and a thread writes the copy to disk."""

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
from paceline.files.tensor_files import Arena

_log = logging.getLogger("paceline")

_NICER = 10
"""Nice value of the writer thread, so that training has priority."""


class BackgroundWriter:
    """Writes the state of one rank in a thread, one checkpoint at a time.

    If a checkpoint cannot be written, training continues. The reporter then calls `tell` with a message, in the thread
    or in `submit`. By default the message is logged.
    """

    def __init__(self, store: Store, *, tell: Callable[[str], None] | None = None, since: int = 0) -> None:
        self.store = store
        self._tell = tell or _log.warning
        self._since = since
        self._under_way = 0
        self._thread: Thread | None = None
        self._preparing: Thread | None = None
        self._arena = Arena()
        self.blocked_s = 0.0
        """Total time that callers of `submit` have waited."""

    @property
    def since(self) -> int:
        """Step of the newest finished checkpoint, or of the checkpoint that the run started from.

        On ranks other than the reporter: step of the newest file that this rank has written.
        """
        return self._since

    @property
    def under_way(self) -> int | None:
        """Step of the checkpoint that is being written. None if there is none."""
        return self._under_way if self._thread is not None and self._thread.is_alive() else None

    def prepare(self, shard: Shard) -> None:
        """Allocate the memory for such a shard in the background, so that the first `submit` is not slower."""
        sized = list(shard.tensors.values())
        self._preparing = Thread(
            target=self._arena.reserve, args=(sized,), name="checkpoint memory", daemon=True
        )
        self._preparing.start()

    def submit(self, step: int, shard: Shard, commit: Callable[[], object] | None = None) -> bool:
        """Copy the shard, and write the copy in the background. The shard may change when this returns.

        The reporter passes `commit`. It is called in the thread when the reporter's own file is written
        (`Store.commit`). Return False if the last checkpoint is not done yet, so that this one is skipped.
        """
        if self._thread is not None and self._thread.is_alive():
            late = f"the checkpoint of step {self._under_way} is not finished"
            self.store.skip(step, shard.rank, late)
            if commit is not None:
                self._complain(f"skipped step {step}, because {late}; use a longer interval")
            return False
        began_s = time.monotonic()
        if self._preparing is not None:
            self._preparing.join()
        tensors, facts = self._arena.copies(shard.tensors), copy.deepcopy(shard.facts)
        kept = Shard(rank=shard.rank, tensors=tensors, facts=facts)
        self._under_way = step
        arguments = (self.store, step, kept, commit)
        self._thread = Thread(target=self._write, args=arguments, name="checkpoint", daemon=True)
        self._thread.start()
        self.blocked_s += time.monotonic() - began_s
        return True

    def finish(self, deadline_s: float) -> bool:
        """Wait for the checkpoint that is being written. Return whether it is done."""
        if self._thread is None:
            return True
        self._thread.join(deadline_s)
        if self._thread.is_alive():
            late = f"the checkpoint of step {self._under_way} was not finished within {deadline_s:g} s"
            self._complain(late)
            return False
        return True

    def _write(self, store: Store, step: int, shard: Shard, commit: Callable[[], object] | None) -> None:
        # Training has priority if cores are scarce; on Linux this applies to one thread.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + _NICER)
        try:
            store.write(step, shard)
            if commit is not None:
                commit()
            self._since = step
        except Exception as error:  # training continues after any error
            if commit is not None:  # the reporter also gets other ranks' failures; one message is enough
                store.abandon(step)
                self._complain(str(error))

    def _complain(self, reason: str) -> None:
        since = f"step {self._since}" if self._since else "the beginning"
        self._tell(f"no new checkpoint since {since}: {reason}")
