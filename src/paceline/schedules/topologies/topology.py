"""The topology of a decentralized strategy."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigurationError
from paceline.schedules.topologies.graph import Floats, Ints
from paceline.schedules.topologies.mixing import Mixing


@dataclass(frozen=True, eq=False, slots=True, kw_only=True, repr=False)
class Topology:
    """Edges and weights, step by step: a doubly stochastic matrix for each step.

    The new value of peer i is the sum over j of weight(i, j) times the value of peer j. Steps repeat: step t is step t
    modulo `period`.
    """

    name: str
    """The text it was built from, or "graph" or "matrix"."""
    peers: int
    directed: bool
    """Whether some peer receives, in some step, from a peer that it does not send to."""
    rows: tuple[Mixing, ...]
    """Weights of each step of the period."""
    columns: tuple[Mixing, ...]
    """The transposed weights of each step."""
    positions: Floats | None = None
    """Positions of the peers in a picture, as rows (x, y), y downwards; None if unknown."""

    @property
    def period(self) -> int:
        return len(self.rows)

    def neighbours(self, rank: int, step: int = 0) -> tuple[int, ...]:
        """Return the peers that this rank receives from, in ascending order."""
        return tuple(peer for peer, _ in self.row(rank, step) if peer != rank)

    def sends_to(self, rank: int, step: int = 0) -> tuple[int, ...]:
        """Return the peers that receive from this rank, in ascending order."""
        self._check(rank)
        return tuple(peer for peer, _ in self.columns[step % self.period].row(rank) if peer != rank)

    def row(self, rank: int, step: int = 0) -> tuple[tuple[int, float], ...]:
        """Return (peer, weight) for this rank's average, including itself, in ascending order. Weights sum to 1."""
        self._check(rank)
        return self.rows[step % self.period].row(rank)

    def weight(self, receiver: int, sender: int, step: int = 0) -> float:
        """Return the weight of the value of `sender` in the average of `receiver`; 0 if there is no edge."""
        self._check(sender)
        return dict(self.row(receiver, step)).get(sender, 0.0)

    def edges(self, step: int = 0) -> Ints:
        """Return all edges of a step, as rows (receiver, sender)."""
        return self.rows[step % self.period].edges

    def matrix(self, step: int = 0) -> Floats:
        """Return the weights of a step as a dense peers x peers matrix."""
        return self.rows[step % self.period].dense()

    def mix(self, values: Floats, step: int = 0) -> Floats:
        """Return the values of the peers after a step. `values` has one row (or one number) per peer."""
        return self.rows[step % self.period].mix(values)

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.peers:
            raise ConfigurationError("peer", f"must be 0 to {self.peers - 1}", rank, f"{self!r} has no other")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        arrays = (array for mixing in self.rows for array in (mixing.offsets, mixing.senders, mixing.weights))
        return self.name, *(array.tobytes() for array in arrays)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, peers={self.peers})"
