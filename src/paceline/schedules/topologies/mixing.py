"""The weights of one step, kept as sparse rows: what each peer makes of what it receives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.schedules.topologies.graph import Floats, Ints

__all__ = ["Mixing", "mixing_of_entries"]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Mixing:
    """Entries of a weight matrix, row by row. Every row has its own peer among its entries, if only with weight 0."""

    offsets: Ints
    """Row i has the entries `offsets[i]` to `offsets[i + 1]`."""
    senders: Ints
    """The column of each entry, ascending within a row."""
    weights: Floats

    @property
    def peers(self) -> int:
        return len(self.offsets) - 1

    @property
    def receivers(self) -> Ints:
        """The row of each entry."""
        return np.repeat(np.arange(self.peers), np.diff(self.offsets))

    @property
    def edges(self) -> Ints:
        """Rows (receiver, sender), without those of a peer to itself."""
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
        """The matrix times `values`, which has a row (or one number) a peer."""
        weights = self.weights.reshape(-1, *[1] * (values.ndim - 1))
        mixed: Floats = np.add.reduceat(weights * values[self.senders], self.offsets[:-1], axis=0)
        return mixed


def mixing_of_entries(peers: int, receivers: Ints, senders: Ints, weights: Floats) -> Mixing:
    """From entries in any order. The diagonal must be among them, zeros too."""
    order = np.argsort(receivers * peers + senders)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(receivers, minlength=peers))])
    arrays = (offsets, senders[order], weights[order])
    for array in arrays:
        array.setflags(write=False)
    return Mixing(*arrays)
