"""A module's buffers (BatchNorm statistics, for example) as flat tensors, so that few messages are sent.

Complex numbers are stored as pairs of real numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatBuffers:
    """The buffers of a module, made views of one flat tensor per dtype."""

    def __init__(self, module: nn.Module) -> None:
        self._places: list[tuple[nn.Module, str, Tensor]] = []
        by_dtype: dict[torch.dtype, list[tuple[nn.Module, str, Tensor]]] = {}
        for owner in module.modules():
            for name, buffer in owner.named_buffers(recurse=False):
                by_dtype.setdefault(buffer.dtype, []).append((owner, name, buffer))
        self._flats = [self._flatten(group) for group in by_dtype.values()]

    def _flatten(self, group: list[tuple[nn.Module, str, Tensor]]) -> Tensor:
        whole = torch.cat([buffer.reshape(-1) for _, _, buffer in group])
        at = 0
        for owner, name, buffer in group:
            # Autograd counts changes of each buffer by itself: `data` does not share the count of `whole`.
            view = whole[at : at + buffer.numel()].view(buffer.shape).data
            owner._buffers[name] = view
            self._places.append((owner, name, view))
            at += buffer.numel()
        return torch.view_as_real(whole).view(-1) if whole.is_complex() else whole

    def flats(self) -> list[Tensor]:
        """Return the flat tensors. They are current even if the module has replaced a buffer instead of changing it."""
        for owner, name, view in self._places:
            current = owner._buffers[name]
            if current is not view and current is not None:
                view.copy_(current)
                owner._buffers[name] = view
        return self._flats
