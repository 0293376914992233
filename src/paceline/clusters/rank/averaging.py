"""Moving average of the weights, if the task uses one. The reporter updates it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank
    from paceline.model.engines.engine import Whole

_PREFIX = "ema/"


class MovingAverage:
    """Moving average that starts from the first weights passed to `update`, as `torch.optim.swa_utils.AveragedModel`
    does.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.values: Tensor | None = None
        """Averaged weights, as one flat tensor. None before the first update."""

    def update(self, parameters: Tensor) -> None:
        if self.values is None:
            self.values = parameters.detach().clone()
        else:
            self.values.lerp_(parameters.detach(), 1 - self._decay)


class Averaging:
    """Moving average of the run's model over its steps."""

    __slots__ = ("_account", "_average", "_kept", "_rank", "_steps")

    def __init__(self, rank: Rank, decay: float) -> None:
        self._rank = rank
        self._average = MovingAverage(decay)
        self._steps = 0
        self._kept: dict[str, Tensor] = {}  # average restored from a checkpoint, by parameter name
        self._account = rank.ledger.account()

    @property
    def values(self) -> Tensor | None:
        self._lay_out()
        return self._average.values

    def _lay_out(self) -> None:
        """Lay out the restored average on first use. A replica with shared segments changes the parameter order
        first."""
        if self._kept:
            flats = [self._kept[name].reshape(-1) for name in self._whole.holding.layout.names]
            self._average.values, self._kept = torch.cat(flats), {}

    @property
    def _whole(self) -> Whole:
        whole: Whole | None = self._rank.model.replica.whole
        assert whole is not None, "the reporter must have the whole model"
        return whole

    def follow(self, steps: int) -> None:
        """Update the average with the parameters after `steps` steps. Repeated calls have no effect."""
        if steps > self._steps:
            self._steps = steps
            self._lay_out()
            parameters = self._whole.laid_out
            self._average.update(parameters)
            self._account.hold("parameters", parameters.nbytes)

    def keep(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the average as tensors by parameter name, and its step count, for a checkpoint."""
        if self.values is None:
            return {}, {}
        layout = self._whole.holding.layout
        views = layout.views(self.values)
        named = {_PREFIX + name: view for name, view in zip(layout.names, views, strict=True)}
        return named, {"averaged_steps": self._steps}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        kept = {name: tensors.get(_PREFIX + name) for name in self._whole.holding.layout.names}
        if all(tensor is not None for tensor in kept.values()):
            self._kept = {name: tensor.clone() for name, tensor in kept.items() if tensor is not None}
            self._steps = facts["averaged_steps"]
