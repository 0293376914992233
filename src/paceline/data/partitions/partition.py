"""Partition of a dataset among clients: even, skewed by label, or by a user-defined function.

Sources: shards by label are McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017. Dirichlet shares are Hsu, Qi, Brown, "Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification", 2019, here drawn label by label, so that clients
differ in size too: Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from paceline.errors import ConfigurationError, UnknownNameError

PartitionFunction = Callable[[np.ndarray, int, int], Sequence[Any]]
"""Function of the targets, the number of clients and a seed that returns the sample numbers of each client."""

KINDS = ("iid", "dirichlet", "shards")


def iid(length: int, clients: int, seed: int) -> list[np.ndarray]:
    """Return random parts of nearly equal size."""
    return np.array_split(np.random.default_rng(seed).permutation(length), clients)


def dirichlet(targets: np.ndarray, clients: int, seed: int, *, alpha: float) -> list[np.ndarray]:
    """Divide the samples of each label among the clients.

    The shares are from a Dirichlet distribution. A smaller alpha is more uneven.
    """
    rng = np.random.default_rng(seed)
    labels = labels_of(targets)
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        # The index at which each client's range of samples ends. Rounding moves an end by less than one sample. No
        # sample is lost.
        ends = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        owner[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    return _group(owner, clients)


def shards(targets: np.ndarray, clients: int, seed: int, *, shards_per_client: int) -> list[np.ndarray]:
    """Sort the samples by label, cut them into equal shards, and deal `shards_per_client` of them to each client."""
    by_label = np.argsort(labels_of(targets), kind="stable")
    pieces = np.array_split(by_label, clients * shards_per_client)
    dealt = np.random.default_rng(seed).permutation(len(pieces)).reshape(clients, shards_per_client)
    return [np.concatenate([pieces[i] for i in hand]) for hand in dealt]


def has_labels(targets: np.ndarray) -> bool:
    """Return whether each target is a single label, an integer."""
    return targets.ndim == 1 and targets.dtype.kind in "iub"


def labels_of(targets: np.ndarray) -> np.ndarray:
    """Return the label of each sample. Raise if the targets are not labels."""
    if has_labels(targets):
        return targets
    bound = "needs one integer target per sample to divide data by label"
    found = f"targets of type {targets.dtype} and shape {targets.shape}"
    raise ConfigurationError("partition", bound, found, "use iid, or your own function")


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """How to partition a dataset among clients. Equal settings give equal parts on every machine."""

    kind: str | PartitionFunction = "iid"
    alpha: float = 0.5
    shards_per_client: int = 2
    allow_empty: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.kind, str) and self.kind not in KINDS:
            raise UnknownNameError("partition", self.kind, KINDS)
        if not isinstance(self.kind, Hashable) or not (isinstance(self.kind, str) or callable(self.kind)):
            remedy = f"give one of {', '.join(KINDS)}, or a function (targets, clients, seed)"
            raise ConfigurationError("partition", "must be a name or a function", self.kind, remedy)
        if not 0 < self.alpha < math.inf:
            remedy = "0.1 is very uneven, 100 nearly even"
            raise ConfigurationError("alpha", "must be finite and above 0", self.alpha, remedy)
        if not _counts(self.shards_per_client, at_least=1):
            bound = "must be a whole number of at least 1"
            raise ConfigurationError("shards_per_client", bound, self.shards_per_client, "2 is McMahan's")
        if not _counts(self.seed, at_least=0):
            raise ConfigurationError("partition_seed", "must be a whole number of at least 0", self.seed)

    def __str__(self) -> str:
        if not isinstance(self.kind, str):
            return getattr(self.kind, "__name__", str(self.kind))
        details = {
            "dirichlet": f", alpha {self.alpha:g}",
            "shards": f", {self.shards_per_client} shards a client",
        }
        return self.kind + details.get(self.kind, "")

    def parts(self, targets: Sequence[Any] | np.ndarray, clients: int) -> tuple[np.ndarray, ...]:
        """Return the sorted sample numbers of each client. With `iid`, only the number of targets matters.

        No sample is in two parts. The named kinds assign every sample. A client without samples is an error unless
        `allow_empty`. The result for the same array is cached, so the clients of one process share it.
        """
        return _parts(self, _Same(len(targets) if self.kind == "iid" else np.asarray(targets)), clients)

    def _draw(self, targets: Any, clients: int) -> Sequence[Any]:
        if callable(self.kind):
            return self.kind(targets, clients, self.seed)
        if self.kind == "dirichlet":
            return dirichlet(targets, clients, self.seed, alpha=self.alpha)
        if self.kind == "shards":
            return shards(targets, clients, self.seed, shards_per_client=self.shards_per_client)
        return iid(targets, clients, self.seed)

    def _refuse_empty(self, parts: Sequence[np.ndarray]) -> None:
        empty = [client for client, part in enumerate(parts) if not len(part)]
        if empty and not self.allow_empty:
            others = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
            remedy = "raise alpha, " * (self.kind == "dirichlet")
            remedy += "use fewer clients or another partition_seed, or allow it with allow_empty=true"
            bound = f"must give each of {len(parts)} clients a sample"
            raise ConfigurationError("partition", bound, f"none for client {empty[0]}{others}", remedy)


class _Same:
    """Cache key for targets that compares by identity, because comparing large arrays would be slow."""

    __slots__ = ("values",)

    def __init__(self, values: np.ndarray | int) -> None:
        self.values = values

    def __hash__(self) -> int:
        return self.values if isinstance(self.values, int) else id(self.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return False
        return self.values is other.values or (isinstance(self.values, int) and self.values == other.values)


@lru_cache(maxsize=1)  # cached, because a simulation calls this once for each client
def _parts(partition: Partition, targets: _Same, clients: int) -> tuple[np.ndarray, ...]:
    length = targets.values if isinstance(targets.values, int) else len(targets.values)
    parts = [np.sort(_sample_numbers(part)) for part in partition._draw(targets.values, clients)]
    if len(parts) != clients:
        raise ConfigurationError("partition", f"must return {clients} parts, one for each client", len(parts))
    _refuse_strays(np.concatenate(parts), length)
    partition._refuse_empty(parts)
    return tuple(parts)


def _sample_numbers(part: Any) -> np.ndarray:
    numbers = np.asarray(part)
    if not numbers.size:
        return np.empty(0, dtype=np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        found = f"{numbers.dtype} of shape {numbers.shape}"
        raise ConfigurationError("partition", "must return lists of sample numbers", found)
    return numbers.astype(np.int64)


def _refuse_strays(numbers: np.ndarray, length: int) -> None:
    """Check the sample numbers. A user's function may omit samples, but every number must be valid and unique."""
    outside = numbers[(numbers < 0) | (numbers >= length)]
    if len(outside):
        raise ConfigurationError(
            "partition", f"must return sample numbers from 0 to {length - 1}", int(outside[0])
        )
    twice = np.flatnonzero(np.bincount(numbers, minlength=1) > 1)
    if len(twice):
        raise ConfigurationError("partition", "must not return a sample twice", int(twice[0]))


def _group(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """Return the sample numbers of each client."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, clients)))


def _counts(value: object, *, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
