"""A point between two computations of a batch, at which a rank exchanges the units that it shares with other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class UnitEvent(NamedTuple):
    """What the program must do before it requests the next event, and what it may do while the rank computes."""

    needed: Sequence[int] = ()
    """Units that the next computation uses. Gather those that are missing. Empty if parameters are not freed."""
    following: Sequence[int] = ()
    """Units that the computation after the next one will probably use. Prefetch them. Empty if unknown."""
    completed: Sequence[int] = ()
    """Units with a gradient of this micro-batch that is now complete on this rank. Reduce-scatter them."""
    is_backward: bool = False
    """Whether the next computation is a backward pass."""
    is_last: bool = False
    """Whether the micro-batch ends here."""
