"""The averaging weights of one step, stored as sparse rows, one per receiving peer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.schedules.topologies.graph import Floats, Ints


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Mixing:
    """Entries of a weight matrix, row by row. Every row includes its diagonal entry, even if that is 0."""

    offsets: Ints
    """Row i has the entries `offsets[i]` to `offsets[i + 1]`."""
    senders: Ints
    """Column of each entry, ascending within a row."""
    weights: Floats

    @property
    def peers(self) -> int:
        return len(self.offsets) - 1

    @property
    def receivers(self) -> Ints:
        """Row of each entry."""
        return np.repeat(np.arange(self.peers), np.diff(self.offsets))

    @property
    def edges(self) -> Ints:
        """Edges as rows (receiver, sender), without self-loops."""
        pairs = np.stack([self.receivers, self.senders], axis=1)
        edges: Ints = pairs[pairs[:, 0] != pairs[:, 1]]
        return edges

    def row(self, rank: int) -> tuple[tuple[int, float], ...]:
        entries = slice(*self.offsets[rank : rank + 2].tolist())
        return tuple(zip(self.senders[entries].tolist(), self.weights[entries].tolist(), strict=True))

    def dense(self) -> Floats:
        matrix = np.zeros((self.peers, self.peers))
        matrix[self.receivers, self.senders] = self.weights
        return matrix

    def transposed(self) -> Mixing:
        return mixing_of_entries(self.peers, self.senders, self.receivers, self.weights)

    def mix(self, values: Floats) -> Floats:
        """Return the matrix times `values`, which has one row (or one number) per peer."""
        weights = self.weights.reshape(-1, *[1] * (values.ndim - 1))
        mixed: Floats = np.add.reduceat(weights * values[self.senders], self.offsets[:-1], axis=0)
        return mixed


def mixing_of_entries(peers: int, receivers: Ints, senders: Ints, weights: Floats) -> Mixing:
    """Build a mixing from entries in any order. They must include the diagonal, even where it is 0."""
    order = np.argsort(receivers * peers + senders)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(receivers, minlength=peers))])
    arrays = (offsets, senders[order], weights[order])
    for array in arrays:
        array.setflags(write=False)
    return Mixing(*arrays)
