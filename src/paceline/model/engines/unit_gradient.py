"""Gradients of a shard unit before ranks reduce them."""

from __future__ import annotations

from torch import Tensor

from paceline.model.layout import Layout, real_view


class UnitGradient:
    """Gradients that autograd computed for the parameters of a unit, until they are written to the communication
    buffer.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._found: list[Tensor | None] = [None] * len(layout.names)
        self.nbytes = 0

    def add(self, number: int, gradient: Tensor) -> None:
        """Add to the gradient of a parameter."""
        real = real_view(gradient.to_dense() if gradient.is_sparse else gradient)
        before = self._found[number]
        # Not in place: autograd may have given the same tensor to other code.
        after = real if before is None else before.to(self._layout.dtype) + real
        self._found[number] = after
        self.nbytes += after.nbytes - (0 if before is None else before.nbytes)

    def of(self, number: int) -> Tensor | None:
        """Return a copy of the gradient of a parameter; None if there is none. The caller may change it."""
        found = self._found[number]
        if found is not None:
            self._found[number] = found = found.to(self._layout.dtype, copy=True)
        return found

    def write(self, flat: Tensor) -> None:
        """Write the whole gradient to `flat` and free it. Parameters that no output depends on get zeros."""
        for number, view in enumerate(self._layout.views(flat)):
            found, self._found[number] = self._found[number], None
            if found is None:
                view.zero_()
            else:
                view.copy_(found)
        self.nbytes = 0
