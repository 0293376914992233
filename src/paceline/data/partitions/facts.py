"""Statistics of a partition: the samples of each label on each client, and the label skew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.data.partitions.partition import Partition, has_labels


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The statistics of a partition."""

    partition: str
    labels: tuple[int, ...]
    """Empty if the targets are not labels."""
    counts: np.ndarray
    """Samples by client and label. One column if there are no labels."""

    @property
    def clients(self) -> int:
        return len(self.counts)

    @property
    def sizes(self) -> np.ndarray:
        """Number of samples of each client."""
        sizes: np.ndarray = self.counts.sum(axis=1)
        return sizes

    @property
    def empty(self) -> list[int]:
        """Clients without a sample."""
        return np.flatnonzero(self.sizes == 0).tolist()

    @property
    def distances(self) -> np.ndarray:
        """Total variation distance of each client's label distribution from the whole dataset's: 0 equal, 1 disjoint.

        NaN for a client without samples.
        """
        sizes = self.sizes[:, None]
        shares = np.divide(self.counts, sizes, out=np.full(self.counts.shape, np.nan), where=sizes > 0)
        distances: np.ndarray = np.abs(shares - self.counts.sum(axis=0) / sizes.sum()).sum(axis=1) / 2
        return distances

    @property
    def skew(self) -> float:
        """Mean distance over the clients."""
        return float(np.nanmean(self.distances))

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics as a dictionary for JSON."""
        distances = [None if np.isnan(distance) else float(distance) for distance in self.distances]
        return {
            "partition": self.partition,
            "clients": self.clients,
            "samples": int(self.sizes.sum()),
            "labels": list(self.labels),
            "counts": self.counts.tolist(),
            "sizes": self.sizes.tolist(),
            "empty": self.empty,
            "distances": distances,
            "skew": self.skew,
        }


def facts_of(partition: Partition, targets: np.ndarray, clients: int) -> Facts:
    """Draw a partition of samples with these targets and return its statistics."""
    parts = partition.parts(targets, clients)
    if not has_labels(targets):
        return Facts(
            partition=str(partition), labels=(), counts=_count(parts, np.zeros(len(targets), int), 1)
        )
    labels, kinds = np.unique(targets, return_inverse=True)
    counts = _count(parts, kinds, len(labels))
    return Facts(partition=str(partition), labels=tuple(int(label) for label in labels), counts=counts)


def _count(parts: Sequence[np.ndarray], kinds: np.ndarray, width: int) -> np.ndarray:
    return np.stack([np.bincount(kinds[part], minlength=width) for part in parts])
