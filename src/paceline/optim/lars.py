"""LARS: SGD with momentum in which each layer has its own rate, in proportion to the norm of its weights.

v = momentum v + lr r (g + decay w) and w = w - v, with r = eta |w| / (|g| + decay |w|). The first v is that scaled
gradient. Parameters of one dimension (biases, norms) have r = 1.
Source: You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", 2017.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.optim.layerwise import (
    LayerwiseOptimizer,
    check_at_least,
    check_fraction,
    norms_of,
    squares_of,
)


class LARS(LayerwiseOptimizer):
    """SGD with momentum, and a rate for each layer. `eta` is the trust coefficient."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eta: float = 0.001,
    ) -> None:
        check_at_least("lr", lr)
        check_fraction("momentum", momentum)
        check_at_least("weight_decay", weight_decay)
        check_at_least("eta", eta)
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eta": eta}
        super().__init__(params, settings)

    @torch.no_grad()
    def begin(self) -> list[tuple[Tensor, Tensor]]:
        return [
            pair
            for _, parameters, gradients in self._trained()
            for pair in zip(parameters, squares_of(parameters, gradients), strict=True)
        ]

    @torch.no_grad()
    def finish(self, squares: Sequence[Tensor]) -> None:
        given = iter(squares)
        for group, parameters, gradients in self._trained():
            adapts = torch.tensor(
                [parameter.dim() > 1 for parameter in parameters], device=parameters[0].device
            )
            rates = group["lr"] * _rates(group, *norms_of(given, len(parameters)), adapts)
            scaled = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
            torch._foreach_mul_(scaled, rates.unbind())
            velocities = self._states(parameters, "momentum_buffer")
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, scaled)
            torch._foreach_sub_(parameters, velocities)


def _rates(group: dict[str, Any], weights: Tensor, gradients: Tensor, adapts: Tensor) -> Tensor:
    """Return eta |w| / (|g| + decay |w|) for each parameter. 1 if one of the norms is zero, as for a new bias."""
    trust = group["eta"] * weights / (gradients + group["weight_decay"] * weights)
    return torch.where(adapts & (weights > 0) & (gradients > 0), trust, 1.0)
