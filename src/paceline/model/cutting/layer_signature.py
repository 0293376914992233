"""Comparison of layers that differ only in parameter values. Of a hundred equal blocks, only one has to be tried."""

from __future__ import annotations

import types
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

_PLAIN = (int, float, str, bool, complex, bytes, type(None), torch.dtype, torch.device, torch.Size, type)
_CODE = (types.FunctionType, types.BuiltinFunctionType)
_OWN = ("_parameters", "_buffers", "_modules")


def layer_signature(layer: nn.Module) -> Hashable | None:
    """Return a key. Layers with equal keys compute the same function, of different parameters.

    None if the layer has an attribute that cannot be compared.
    """
    found: list[Any] = []
    for name, module in layer.named_modules(remove_duplicate=False):
        found += [name, type(module)]
        for key, value in module.__dict__.items():
            if key in _OWN:
                continue
            if not _is_comparable(value):
                return None
            # Compare types too, because 1 equals True. Empty collections are compared by type only.
            found += [key, type(value), None if isinstance(value, dict | list | set) else value]
        for tensors in (module._parameters, module._buffers):
            found += [(key, shapes_of(tensor)) for key, tensor in tensors.items()]
    return tuple(found)


def shapes_of(value: Any) -> Hashable | None:
    """Return shapes, strides, dtypes and devices of the tensors in a value. None if it contains other objects."""
    leaves, structure = tree_flatten(value)
    found: list[Any] = [str(structure)]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            found.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad))
        elif isinstance(leaf, _PLAIN):
            found += [type(leaf), leaf]
        else:
            return None
    return tuple(found)


def _is_comparable(value: Any) -> bool:
    """Return whether a value can be compared: numbers, strings, functions and empty collections (unused hooks)."""
    if isinstance(value, dict | list | set):
        return not value
    if isinstance(value, tuple):
        return all(_is_comparable(each) and not isinstance(each, dict | list | set) for each in value)
    return isinstance(value, (*_PLAIN, *_CODE))
