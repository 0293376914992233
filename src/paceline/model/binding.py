"""Binding of a module's parameters to the flat parameters of its replica: as views if possible, otherwise as copies.

A copy is needed if a parameter has another dtype than the flat tensor, or if the flat tensor is in CPU memory and the
module is on a device. The optimizer updates the flat tensor. The copies are refreshed before the module is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.model.layout import Layout, can_be_complex, real_view


class Binding:
    """The trainable parameters of a module, and the flat tensor that stores their values."""

    def __init__(self, layout: Layout, parameters: Sequence[Tensor], device: torch.device) -> None:
        self._layout = layout
        self._parameters = parameters
        self._device = device

    def hold(self, flat: Tensor) -> None:
        """Bind the module to this flat tensor."""
        self._flat = flat
        self._near = flat if flat.device == self._device else torch.empty_like(flat, device=self._device)
        self._copies: list[tuple[Tensor, Tensor]] = []
        views = self._layout.views(self._near)
        for parameter, dtype, view in zip(self._parameters, self._layout.dtypes, views, strict=True):
            if dtype == view.dtype:
                parameter.data = view
            elif can_be_complex(view.dtype, dtype, int(view.storage_offset())):
                parameter.data = torch.view_as_complex(view)
            else:
                # Autograd does not count a write to `data` as a change. With zero:stage=3 the copy is made again
                # between forward and backward, with the same values.
                self._copies.append((real_view(parameter.data), view))
        self.refresh()

    def is_to(self, flat: Tensor) -> bool:
        """Return whether the module is bound to this flat tensor."""
        return self._flat is flat

    @property
    def near_bytes(self) -> int:
        """Bytes of the copy on the module's device, if the flat tensor is elsewhere."""
        return 0 if self._near is self._flat else self._near.nbytes

    def refresh(self) -> None:
        """Update the module's copies, if it has copies."""
        if self._near is not self._flat:
            self._near.copy_(self._flat)
        for own, view in self._copies:
            own.copy_(view)
