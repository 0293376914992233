"""Parameters and gradients of a rank as two flat tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paceline.model.binding import Binding
from paceline.model.finite import check_updated
from paceline.model.gradients import FlatGradient
from paceline.model.holding import Holding
from paceline.model.layout import flatten
from paceline.model.memory import Account
from paceline.model.stages.backward import Gradients


class FlatStore:
    """All trainable parameters of a module. The module's parameters are views of one flat tensor: see `Binding`."""

    def __init__(
        self,
        module: nn.Module,
        holding: Holding,
        device: torch.device,
        account: Account,
        *,
        watches_layers: bool = False,
        has_hooks: bool = True,
    ) -> None:
        """`watches_layers` and `has_hooks` are as in `FlatGradient`."""
        trainable = [p for p in module.parameters() if p.requires_grad]
        self._holding = holding
        self._account = account
        layout = holding.layout
        self._layout = layout
        self._numbers = {id(parameter): number for number, parameter in enumerate(trainable)}
        self.parameters = flatten(trainable, layout.dtype, device)
        self._binding = Binding(layout, trainable, device)
        self._binding.hold(self.parameters)
        self.flat_gradient = FlatGradient(
            module, trainable, layout, watches_layers=watches_layers, has_hooks=has_hooks
        )
        self.flat_gradient.hold(torch.zeros_like(self.parameters))
        self._book()

    @property
    def gradient(self) -> Tensor:
        return self.flat_gradient.flat

    @property
    def not_finite(self) -> str | None:
        return self.flat_gradient.not_finite

    def memory(self, part: slice) -> tuple[Tensor, Tensor]:
        """Return parameters and gradient of a part of the layout."""
        return self.parameters[part], self.gradient[part]

    def values(self) -> Mapping[str, Tensor]:
        """Return the parameters by name, as views of the master copy."""
        return dict(zip(self._layout.names, self._layout.views(self.parameters), strict=True))

    def is_at(self, parameters: Tensor | None, gradient: Tensor | None) -> bool:
        """Return whether the flat tensors are already in this memory."""
        wanted = ((parameters, self.parameters), (gradient, self.gradient))
        return not any(new is not None and new.data_ptr() != old.data_ptr() for new, old in wanted)

    def place(self, parameters: Tensor | None, gradient: Tensor | None) -> None:
        """Move the flat tensors into other memory, with the values that the parameters have there.

        Memory of the processor may serve a module on a device: it is copied there before each computation.
        """
        if parameters is not None:
            self.parameters = parameters
            self._binding.hold(parameters)
            if gradient is None and parameters.device != self.gradient.device:
                gradient = torch.zeros_like(parameters)  # an optimizer needs both on one device
        if gradient is not None:
            self.flat_gradient.hold(gradient)
        self._book()

    def _book(self) -> None:
        self._account.hold("parameters", self._holding.parameter_bytes + self._binding.near_bytes)
        self._account.hold("gradients", self._holding.gradient_bytes)

    def move_to(self, parameters: Tensor) -> None:
        """Store the parameters in other memory of their device, which has their values already."""
        self.parameters = parameters
        self.bind(parameters)

    def bind(self, parameters: Tensor) -> None:
        """Bind other parameters to the module, until the next call."""
        if self._binding.is_to(parameters):
            self._binding.refresh()
        else:
            self._binding.hold(parameters)

    def refresh(self) -> None:
        """Update the module's copies of parameters."""
        self._binding.refresh()

    @contextmanager
    def bound(self, parameters: Tensor | None) -> Iterator[None]:
        """Bind other parameters to the module temporarily. None for the parameters stored here."""
        if parameters is None:
            self._binding.refresh()
            yield
            return
        self._binding.hold(parameters)
        try:
            yield
        finally:
            self._binding.hold(self.parameters)

    def check_updated(self, parameters: Tensor | None) -> None:
        """Raise an error if parameters are not finite."""
        check_updated(self._layout, self.parameters if parameters is None else parameters)

    # Gradients of segments

    def begin_batch(self) -> None:
        self._binding.refresh()
        self.flat_gradient.clear()

    def take(self, weights: Sequence[Tensor], found: Gradients) -> None:
        """Add the gradients of some parameters."""
        for weight, gradient in zip(weights, found, strict=True):
            if gradient is not None:
                self.flat_gradient.add(self._numbers[id(weight)], gradient)

    def end_batch(self) -> None:
        """Check that the gradient is finite."""
        if self._layout.length:
            self.flat_gradient.check()

    def laid_out(self) -> Tensor:
        """Return all parameters, in the order of the layout."""
        return self.parameters

    def all_parameters(self) -> Tensor:
        """Return the parameters of the held segments, in the order of the whole model."""
        return self.parameters
