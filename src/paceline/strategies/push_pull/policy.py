"""The decisions that make a variant of the parameter server."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigurationError

__all__ = ["BUFFER", "ORDER", "PARAMETERS", "PUSH", "SHARD", "Policy"]

# The tags of what ranks tell each other, and the headers of these messages.
# A worker's gradient, to every server its shard: step, version, loss. Without a header it is the worker's farewell.
PUSH = 1
PARAMETERS = 2  # a server's shard, to a worker: version, and whether to go on
ORDER = 3  # which gradients make up an update, from the first server to the others
SHARD = 4  # another server's shard, to the first one, when the run looks at the model
BUFFER = 5  # the first worker's BatchNorm statistics and the like, to the first server


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """When an update happens, and what becomes of the workers then."""

    k: int
    """Gradients that make up an update."""
    cancels: bool = False
    """Whether an update cancels the computations under way, and discards what they push."""
    waits: bool = True
    """Whether a worker that has pushed waits for the update before it goes on."""
    slack: int | None = None
    """How many gradients a worker may be ahead of the slowest when it begins another. None: any number."""
    keeps: bool = True
    """Whether a worker keeps the parameters while it waits for the next ones."""

    def takes_all(self, workers: int) -> bool:
        """Whether an update is by one gradient of every worker, all of them of the same global batch."""
        return self.waits and not self.cancels and self.slack is None and self.k == workers

    def check(self, workers: int) -> None:
        at_most = workers if self.waits else 10**6
        if not isinstance(self.k, int) or not 1 <= self.k <= at_most:
            remedy = f"this cluster has {workers} workers"
            raise ConfigurationError("k", f"must be a whole number from 1 to {at_most}", self.k, remedy)
        if self.slack is not None and (not isinstance(self.slack, int) or self.slack < 0):
            remedy = "0 is bulk-synchronous"
            raise ConfigurationError("staleness", "must be a whole number of at least 0", self.slack, remedy)
