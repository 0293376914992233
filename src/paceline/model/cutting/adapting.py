"""Support for code that torch.export cannot trace without help: dataclasses, and masks that torch's transformers
read."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import transformer
from torch.utils import _pytree as pytree


@contextlib.contextmanager
def adapted(module: nn.Module, inputs: Any) -> Iterator[None]:
    """Trace a module whose inputs and outputs may contain dataclasses. Dataclasses stay registered with torch."""
    _register(inputs)
    hook = module.register_forward_hook(lambda _, __, outputs: _register(outputs))
    detect, transformer._detect_is_causal_mask = transformer._detect_is_causal_mask, _is_causal
    try:
        yield
    finally:
        hook.remove()
        transformer._detect_is_causal_mask = detect


def _is_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Return whether the caller declared the mask as causal.

    This replaces torch's function, which compares the values of the mask. Attention with the mask gives the same
    result.
    """
    return is_causal is True


def _register(value: Any) -> None:
    """Register the dataclasses in a value, so that torch.export finds the tensors in them."""
    kind = type(value)
    if dataclasses.is_dataclass(kind) and kind not in pytree.SUPPORTED_NODES:
        pytree.register_dataclass(kind)
    node = pytree.SUPPORTED_NODES.get(kind)
    for child in () if node is None else node.flatten_fn(value)[0]:
        _register(child)
