"""What every cluster asks of its arguments."""

from __future__ import annotations

import os

from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.errors import ConfigurationError

__all__ = [
    "check_compute",
    "check_deadline",
    "check_device_word",
    "check_real_stragglers",
    "check_threads",
    "check_workers",
    "device_words",
    "share_of_cores",
    "thread_words",
]

MAX_THREADS = 1024


def check_workers(workers: object, at_most: int) -> None:
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= at_most:
        raise ConfigurationError(
            "workers", f"must be a whole number from 1 to {at_most}", workers, "one process or node a worker"
        )


def check_compute(compute: object) -> None:
    if compute is not None and not isinstance(compute, Times):
        remedy = "write pl.times.Constant(0.01)"
        raise ConfigurationError("compute", "must be a distribution of pl.times", compute, remedy)


def check_threads(threads: object) -> None:
    if threads is None:
        return
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MAX_THREADS:
        bound = f"must be None or a whole number from 1 to {MAX_THREADS}"
        raise ConfigurationError("threads", bound, threads, "None shares the cores out among the workers")


def check_device_word(device: object, *, elsewhere: bool = False) -> None:
    """A device of this machine; or of hosts that will say themselves what they have."""
    if not isinstance(device, str):
        remedy = 'write "cpu", "auto" or the name that torch has for it, such as "cuda"'
        raise ConfigurationError("device", "must be a word", device, remedy)
    if device != "cpu" and not elsewhere:  # torch takes a second to import
        from paceline.replica.devices import check_device

        check_device(device)


def device_words(device: str) -> list[str]:
    """For a cluster's description; empty where nothing was asked for."""
    return [] if device == "cpu" else [f"on {device}"]


def share_of_cores(workers: int) -> int:
    """Threads of each worker, so that those of one host do not fight for its cores. Servers mostly wait."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, workers))


def thread_words(threads: int | None) -> list[str]:
    """For a cluster's description; empty where nothing was asked for."""
    return [] if threads is None else [f"{threads} thread{'s' * (threads > 1)} a rank"]


def check_deadline(deadline_s: float) -> None:
    if not deadline_s > 0:
        raise ConfigurationError("deadline_s", "must be above 0", deadline_s, "60.0 is the default")


def check_real_stragglers(stragglers: Stragglers, ranks: int) -> None:
    """Real processes can be slowed down, but not sped up."""
    stragglers.check(ranks)
    for rank, factor in stragglers.slow.items():
        if factor < 1:
            remedy = "a real worker cannot be made faster: slow the others"
            raise ConfigurationError(f"slow[{rank}]", "must be at least 1", factor, remedy)
