"""The folder of checkpoints during a run, and the end of the run: a signal ends it at its next step."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator

from paceline.checkpoints.store import Store
from paceline.errors import ConfigurationError, PacelineError
from paceline.system import stopping

_log = logging.getLogger("paceline")


@contextlib.contextmanager
def checkpointing(store: Store, first: int, *, writes: bool) -> Iterator[None]:
    """Save checkpoints during the run in this block. If it ends early, the message tells how to resume it.

    The run starts with step `first`. With `writes` this process writes the store; otherwise another one of its launch.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(store.unlock)
        stop = stack.enter_context(stopping.stops_kept())
        if writes:
            store.begin(first)
            stack.callback(store.end)
        try:
            yield
        except ConfigurationError:  # the run did not start
            raise
        except PacelineError as error:
            error.add_note(_advice(store))
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_advice(store)) from None
        if stop.signum:
            _end(stop.signum, _advice(store))


def _end(signum: int, advice: str) -> None:
    if signum == signal.SIGINT:
        raise KeyboardInterrupt(advice)
    _log.warning("%s", advice)
    raise SystemExit(128 + signum)


def _advice(store: Store) -> str:
    there = store.checkpoints()
    if not there:
        return f"there is no checkpoint in {store.folder} yet"
    return f"to resume after step {there[-1].step}: resume=True (--resume) with checkpoint {store.folder}"
