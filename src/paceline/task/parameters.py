"""The argument of the function that makes an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


class Parameters(list[Any]):
    """A list of a module's trainable parameters that also has the module's attributes.

    So one argument works for `lambda params: SGD(params, lr=1)` and `lambda m: SGD(m.head.parameters(), lr=1)`.
    """

    __slots__ = ("_module",)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(parameter for parameter in module.parameters() if parameter.requires_grad)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        # Special methods that Python looks up, such as the ones for copying, are inherited from the list.
        if name == "_module" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._module, name)
