"""What a strategy knows of its topology."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigurationError
from paceline.schedules.topologies.graph import Floats, Ints
from paceline.schedules.topologies.mixing import Mixing

__all__ = ["Topology"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True, repr=False)
class Topology:
    """Who receives from whom and with what weight, step by step: a doubly stochastic matrix for each step.

    Peer i becomes the sum over j of weight(i, j) times peer j. Steps go on for ever: step t is step t modulo `period`.
    """

    name: str
    """The words it was built from, or "graph" or "matrix"."""
    peers: int
    directed: bool
    """Whether some peer receives, in some step, from one that it does not send to."""
    rows: tuple[Mixing, ...]
    """The weights of each step of the period."""
    columns: tuple[Mixing, ...]
    """The same, transposed."""
    positions: Floats | None = None
    """Where the peers stand in a picture, as rows (x, y), y downwards; None: nobody knows."""

    @property
    def period(self) -> int:
        return len(self.rows)

    def neighbours(self, rank: int, step: int = 0) -> tuple[int, ...]:
        """Those that this rank receives from, in ascending order."""
        return tuple(peer for peer, _ in self.row(rank, step) if peer != rank)

    def sends_to(self, rank: int, step: int = 0) -> tuple[int, ...]:
        """Those that receive from this rank, in ascending order."""
        self._check(rank)
        return tuple(peer for peer, _ in self.columns[step % self.period].row(rank) if peer != rank)

    def row(self, rank: int, step: int = 0) -> tuple[tuple[int, float], ...]:
        """(peer, weight) of all that this rank adds up, itself among them, in ascending order. Weights sum to 1."""
        self._check(rank)
        return self.rows[step % self.period].row(rank)

    def weight(self, receiver: int, sender: int, step: int = 0) -> float:
        """Of what `receiver` makes of what `sender` has; 0 where there is no edge."""
        self._check(sender)
        return dict(self.row(receiver, step)).get(sender, 0.0)

    def edges(self, step: int = 0) -> Ints:
        """All edges of a step, as rows (receiver, sender)."""
        return self.rows[step % self.period].edges

    def matrix(self, step: int = 0) -> Floats:
        """The weights of a step as a dense matrix: peers times peers numbers."""
        return self.rows[step % self.period].dense()

    def mix(self, values: Floats, step: int = 0) -> Floats:
        """What the peers hold after a step; `values` has a row (or one number) a peer."""
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
