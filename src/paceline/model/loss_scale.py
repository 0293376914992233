"""Dynamic loss scaling for float16: the loss is multiplied by a scale, so that small gradients do not become zero.

Gradients are divided by the scale before they leave the rank, so ranks may have different scales. The scales are powers
of two, so both operations are exact. An update with a gradient that is not finite is skipped, and the scale is halved.
Source: Micikevicius et al., "Mixed Precision Training", 2018.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

NAME = "loss_scale"
"""Name of the state in checkpoints."""

_INITIAL = 2.0**16
_GROWS_AFTER = 2000
_UNKNOWN, _FINITE, _OVERFLOWED = -1.0, 0.0, 1.0
_SCALE, _GOOD, _SKIPPED, _LAST = range(4)


class LossScale:
    """The loss scale of one rank. It doubles after 2,000 gradients without an overflow."""

    __slots__ = ("_states", "cause")

    def __init__(self) -> None:
        self._states: dict[str, Tensor] = {}
        self.cause = ""
        """Parameter with the last gradient that was not finite on this rank. Empty if none was."""

    def keep_in(self, states: dict[str, Tensor]) -> None:
        """Store the numbers in the rank's state, so that checkpoints save them."""
        states[NAME] = self._numbers
        self._states = states

    @property
    def _numbers(self) -> Tensor:
        # Looked up each time: a rank that is restored gets other tensors.
        if NAME not in self._states:
            self._states[NAME] = torch.tensor([_INITIAL, 0, 0, _UNKNOWN], dtype=torch.float64)
        return self._states[NAME]

    @property
    def value(self) -> float:
        return float(self._numbers[_SCALE])

    @property
    def skipped(self) -> int:
        """Number of updates that this rank skipped."""
        return int(self._numbers[_SKIPPED])

    @property
    def is_too_small(self) -> bool:
        """Whether the scale has fallen below 1.

        A rank without a gradient that was not finite waits for the rank that had one, whose error names the layer.
        """
        return self.value < (1.0 if self.cause else 0.25)

    def begin(self) -> None:
        """Begin a gradient. If this rank did not apply the last one, its own overflow changes the scale now."""
        last = float(self._numbers[_LAST])
        if last != _UNKNOWN:
            self._adapt(overflowed=last == _OVERFLOWED)

    def end(self, not_finite: str | None) -> None:
        """End a gradient. `not_finite` is a parameter with an overflow on this rank."""
        self.cause = not_finite or self.cause
        self._numbers[_LAST] = _FINITE if not_finite is None else _OVERFLOWED

    def note_update(self, *, overflowed: bool) -> None:
        """Note that an update is made, or skipped. `overflowed` is the same on all ranks that make it."""
        if self._numbers[_LAST] != _UNKNOWN:  # a server computes no gradients, and has no scale to change
            self._adapt(overflowed=overflowed)
        if overflowed:
            self._numbers[_SKIPPED] += 1

    def _adapt(self, *, overflowed: bool) -> None:
        numbers = self._numbers
        numbers[_LAST] = _UNKNOWN
        numbers[_GOOD] = 0 if overflowed else numbers[_GOOD] + 1
        if overflowed:
            numbers[_SCALE] *= 0.5
        elif numbers[_GOOD] == _GROWS_AFTER:
            numbers[_SCALE] *= 2
            numbers[_GOOD] = 0


def weights(weight: float, scale: LossScale | None) -> tuple[float | None, float]:
    """Return the factors of a loss (None for 1) and of its gradients. Together they multiply gradients by `weight`.

    A scaled loss is weighted, too. A sample then has the same gradient in float16, in whatever slice it is computed.
    """
    return (None, weight) if scale is None else (weight * scale.value, 1.0 / scale.value)


def scaled(loss: Tensor, factor: float | None) -> Tensor:
    """Return the loss times a factor; in float32, because a scaled loss may be too large for float16."""
    return loss if factor is None else loss.float() * factor
