"""An exponential moving average of the weights."""

from __future__ import annotations

from torch import Tensor

__all__ = ["MovingAverage"]


class MovingAverage:
    """It begins with the first weights that it sees, as `torch.optim.swa_utils.AveragedModel` does."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.values: Tensor | None = None
        """One flat tensor, as a replica's parameters are. None: it has seen none."""

    def update(self, parameters: Tensor) -> None:
        if self.values is None:
            self.values = parameters.detach().clone()
        else:
            self.values.lerp_(parameters.detach(), 1 - self._decay)
