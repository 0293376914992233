"""What every cluster asks of its arguments."""

from __future__ import annotations

from paceline.errors import ConfigurationError

__all__ = ["check_workers"]


def check_workers(workers: object, at_most: int) -> None:
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= at_most:
        raise ConfigurationError(
            "workers", f"must be a whole number from 1 to {at_most}", workers, "one process or node a worker"
        )
