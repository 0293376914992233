"""The folder of checkpoints during a run, and the end of the run: a signal ends it at its next step."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import time
from collections.abc import Iterator

from paceline.checkpoints.store import Store
from paceline.costs.units import check_positive
from paceline.errors import ConfigurationError, PacelineError
from paceline.system import stopping

_log = logging.getLogger("paceline")


@contextlib.contextmanager
def checkpointing(store: Store, first: int, *, writes: bool, limit_s: float = math.inf) -> Iterator[None]:
    """Save checkpoints during the run in this block. If it ends early, the message explains how to resume it.

    The run starts with step `first`. With `writes` this process writes the store; otherwise another one of its launch.
    At `limit_s` on the monotonic clock the run is asked to stop.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(store.unlock)
        stop = stack.enter_context(stopping.stops_kept(limit_s))
        if writes:
            store.begin(first)
            stack.callback(store.end)
        try:
            yield
        except ConfigurationError:  # the run did not start
            raise
        except PacelineError as error:
            error.add_note(advice(store))
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt(advice(store)) from None
        if stop.signum:
            _end(stop.signum, advice(store))


def _end(signum: int, how: str) -> None:
    if signum == signal.SIGINT:
        raise KeyboardInterrupt(how)
    _log.warning("%s", how)
    raise SystemExit(128 + signum)


def advice(store: Store) -> str:
    """Return how to resume a run that has ended early."""
    there = store.checkpoints()
    if not there:
        return f"there is no checkpoint in {store.folder} yet"
    return f"to resume after step {there[-1].step}: resume=True (--resume) with checkpoint {store.folder}"


def time_limit(max_seconds: object, checkpoint: object) -> float:
    """Return when the run must end, on the monotonic clock."""
    if max_seconds is None:
        return math.inf
    check_positive(
        max_seconds, "max_seconds", "give the seconds that the job has, less some for the checkpoint"
    )
    if checkpoint is None:
        remedy = "write checkpoint=folder, so that resume=True can continue the run"
        raise ConfigurationError("max_seconds", "needs checkpoint", max_seconds, remedy)
    assert isinstance(max_seconds, (int, float))
    return time.monotonic() + max_seconds
