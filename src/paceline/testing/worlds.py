"""The clusters for testing strategies.

Each rank has one thread. The last bits of a sum can depend on the number of threads, which by default depends on the
machine's cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import paceline as pl
from paceline.clusters.base.job import Cluster


def simulated(workers: int, **changes: Any) -> pl.Simulated:
    """Return a simulated cluster in which a gradient takes 10 ms."""
    given: dict[str, Any] = {"compute": pl.times.Constant(0.01), "threads": 1}
    return pl.Simulated(workers=workers, **(given | changes))


WORLDS: Mapping[str, Callable[[int], Cluster]] = {
    "local": lambda workers: pl.Local(workers=workers, threads=1),
    "simulated": simulated,
}
