"""An exponential moving average of the weights."""

from __future__ import annotations

from torch import Tensor


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
