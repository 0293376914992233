"""How a module holds the flat parameters of its replica: as views of them where it can, else as copies.

A copy is needed where a parameter has another dtype than the flat tensor, or where that lies in the processor's memory
and the module on a device. The flat tensor is then what is learned. The copies are made anew before the module is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.replica.layout import Layout, real_view

__all__ = ["Binding"]


class Binding:
    """The trainable parameters of a module, and the flat tensor that they hold."""

    def __init__(self, layout: Layout, parameters: Sequence[Tensor], device: torch.device) -> None:
        self._layout = layout
        self._parameters = parameters
        self._device = device

    def hold(self, flat: Tensor) -> None:
        """Let the module hold these parameters from now on."""
        self._flat = flat
        self._near = flat if flat.device == self._device else torch.empty_like(flat, device=self._device)
        self._copies: list[tuple[Tensor, Tensor]] = []
        views = self._layout.views(self._near)
        for parameter, dtype, view in zip(self._parameters, self._layout.dtypes, views, strict=True):
            if dtype == view.dtype:
                parameter.data = view
            elif _can_be_complex(view, dtype):
                parameter.data = torch.view_as_complex(view)
            else:
                self._copies.append((real_view(parameter), view))
        self.refresh()

    def refresh(self) -> None:
        """Bring the module up to date, where it has copies."""
        if self._near is not self._flat:
            self._near.copy_(self._flat)
        for own, view in self._copies:
            own.copy_(view)


def _can_be_complex(view: Tensor, dtype: torch.dtype) -> bool:
    """Two numbers make a complex one only if they lie at an even place."""
    return dtype.is_complex and dtype.to_real() == view.dtype and view.storage_offset() % 2 == 0
