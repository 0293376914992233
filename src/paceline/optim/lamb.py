"""LAMB: Adam in which each layer's update has a length in proportion to the norm of its weights.

w = w - lr |w| / |u| u, where u is Adam's direction with bias correction plus decay times w.
Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.errors import ConfigurationError
from paceline.optim.layerwise import (
    LayerwiseOptimizer,
    check_at_least,
    check_fraction,
    norms_of,
    squares_of,
)


class LAMB(LayerwiseOptimizer):
    """Adam, and a rate for each layer."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        check_at_least("lr", lr)
        if len(betas) != 2:
            raise ConfigurationError("betas", "must be two numbers", betas, "(0.9, 0.999) is usual")
        for beta in betas:
            check_fraction("betas", beta)
        check_at_least("eps", eps)
        check_at_least("weight_decay", weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._directions: list[list[Tensor]] = []

    @torch.no_grad()
    def begin(self) -> list[tuple[Tensor, Tensor]]:
        self._directions = []
        found: list[tuple[Tensor, Tensor]] = []
        for group, parameters, gradients in self._trained():
            directions = self._directions_of(group, parameters, gradients)
            self._directions.append(directions)
            found += zip(parameters, squares_of(parameters, directions), strict=True)
        return found

    def _directions_of(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]
    ) -> list[Tensor]:
        """Return Adam's directions, and update its averages."""
        first, second = group["betas"]
        for parameter in parameters:
            self.state[parameter]["step"] = self.state[parameter].get("step", 0) + 1
        steps = [self.state[parameter]["step"] for parameter in parameters]
        means, squares = self._states(parameters, "exp_avg"), self._states(parameters, "exp_avg_sq")
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
        below = torch._foreach_div(squares, [1 - second**step for step in steps])
        torch._foreach_sqrt_(below)
        torch._foreach_add_(below, group["eps"])
        directions = torch._foreach_div(means, [1 - first**step for step in steps])
        torch._foreach_div_(directions, below)
        torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        return list(directions)

    @torch.no_grad()
    def finish(self, squares: Sequence[Tensor]) -> None:
        given = iter(squares)
        for (group, parameters, _), directions in zip(self._trained(), self._directions, strict=True):
            weights, lengths = norms_of(given, len(parameters))
            trust = torch.where((weights > 0) & (lengths > 0), weights / lengths, 1.0)
            torch._foreach_mul_(directions, (group["lr"] * trust).unbind())
            torch._foreach_sub_(parameters, directions)
        self._directions = []
