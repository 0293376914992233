"""The decisions that define a variant of the parameter server."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigurationError

# Message tags, with the headers of these messages.
# A worker's gradient, one shard to each server: step, version, loss. A message without a header is a farewell.
PUSH = 1
PARAMETERS = 2  # a server's shard, to a worker: version, and whether to continue
ORDER = 3  # the gradients of an update, from the first server to the others
SHARD = 4  # another server's shard, to the first server, when the run inspects the model
BUFFER = 5  # the first worker's BatchNorm statistics and the like, to the first server
RECEIPT = 6  # empty message from the first server to a worker: the server has read the worker's gradient


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """When an update happens, and what the workers do then."""

    k: int
    """Number of gradients in an update."""
    cancels: bool = False
    """Whether an update cancels running computations and discards their gradients."""
    waits: bool = True
    """Whether a worker that has pushed waits for the update before it continues."""
    slack: int | None = None
    """Number of gradients that a worker may be ahead of the slowest worker when it starts the next; None if
    unlimited."""
    keeps: bool = True
    """Whether a worker keeps the parameters in memory while it waits for the next ones."""

    def takes_all(self, workers: int) -> bool:
        """Return whether an update takes one gradient from every worker, all from the same global batch."""
        return self.waits and not self.cancels and self.slack is None and self.k == workers

    @property
    def sends_receipts(self) -> bool:
        """Return whether the first server confirms each gradient.

        A worker that neither waits for parameters nor for a receipt could push gradients faster than a link carries
        them. All gradients would then be outdated when they arrive, and the time between updates would grow.
        """
        return self.cancels and not self.waits

    def check(self, workers: int) -> None:
        at_most = workers if self.waits else 10**6
        if not isinstance(self.k, int) or not 1 <= self.k <= at_most:
            remedy = f"this cluster has {workers} workers"
            raise ConfigurationError("k", f"must be a whole number from 1 to {at_most}", self.k, remedy)
        if self.slack is not None and (not isinstance(self.slack, int) or self.slack < 0):
            remedy = "0 is bulk-synchronous"
            raise ConfigurationError("staleness", "must be a whole number of at least 0", self.slack, remedy)
