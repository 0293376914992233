"""Measured shares of a gradient's time, by the parts of a model.

Parts differ in their time per operation, and the first one computes no gradient of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class PassShares:
    """Shares of the time of a gradient that passes through segments of a model take.

    They add up to a little more than 1, because the passes of a split model have more overhead.
    """

    ends: tuple[int, ...]
    """Number of the part after each measured segment. The last one is the number of parts."""
    forward: tuple[float, ...]
    """Share of the forward pass through each segment."""
    backward: tuple[float, ...]

    @classmethod
    def of(
        cls,
        ends: Sequence[int],
        forward_s: Sequence[float],
        backward_s: Sequence[float],
        gradient_s: float,
    ) -> PassShares:
        """Return the shares, given measured seconds of the passes and of a gradient of the whole model.

        Passes take at least as long as the gradient: a longer gradient was disturbed.
        """
        gradient_s = min(gradient_s, sum(forward_s) + sum(backward_s))
        return cls(
            ends=tuple(ends),
            forward=tuple(each / gradient_s for each in forward_s),
            backward=tuple(each / gradient_s for each in backward_s),
        )

    @property
    def parts(self) -> int:
        return self.ends[-1]

    def between(self, first: int, last: int, *, backward: bool) -> float:
        """Return the share of a pass through the parts from `first` up to, but not including, `last`.

        Parts of one measured segment have equal shares.
        """
        shares = self.backward if backward else self.forward
        sums = (0.0, *accumulate(shares))
        low, high = np.interp((first, last), (0, *self.ends), sums)
        return float(high - low)
