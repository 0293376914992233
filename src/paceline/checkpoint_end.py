"""The end of a run with checkpoints: a signal, a time limit or an error, and how to resume the run."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
from collections.abc import Iterator

from paceline.checkpoints import Store
from paceline.checkpoints.model_state import model_state
from paceline.clusters.base import stopping
from paceline.clusters.base.job import Cluster, Job
from paceline.errors import ConfigurationError, PacelineError
from paceline.runs.run import Run

_log = logging.getLogger("paceline")


@contextlib.contextmanager
def checkpointing(job: Job, cluster: Cluster, limit_s: float = math.inf) -> Iterator[None]:
    """Save checkpoints during the run in this block. If it ends early, the message tells how to resume it.

    At `limit_s` on the monotonic clock the run is asked to stop.
    """
    plan = job.checkpointing
    if plan is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.callback(plan.store.unlock)
        stop = stack.enter_context(stopping.stops_kept(limit_s))
        if cluster.launch_id is None:
            plan.store.begin(job.generations.first)
            stack.callback(plan.store.end)
        try:
            yield
        except ConfigurationError:  # the run did not start
            raise
        except PacelineError as error:
            error.add_note(_advice(plan.store))
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_advice(plan.store)) from None
        if stop.signum:
            _end(stop.signum, _advice(plan.store))


def stopped_in_time(run: Run, job: Job) -> Run:
    """Return a run that stopped at its time limit, with the model of its last checkpoint; any other run unchanged."""
    if job.checkpointing is None or run.state or run.steps >= job.steps:
        return run
    newest = job.checkpointing.store.newest()
    if newest is not None:
        run.state = model_state(newest)
        if run.module is not None:
            run.module.load_state_dict(run.state)
        _log.warning("%s", _advice(job.checkpointing.store))
    return run


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
