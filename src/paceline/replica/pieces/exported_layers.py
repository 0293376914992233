"""A Sequential as torch.export sees its layers, each by itself: equal layers are traced once.

A model of a hundred equal blocks is traced in the time of one of them. `Exported.fetcher(layer, node)` finds the
parameters of whichever layer it is asked for, so that one graph serves all that are alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from paceline.replica.pieces.alike import likeness, shapes_of
from paceline.replica.pieces.chain import layers_in, only_input
from paceline.replica.pieces.exporting import Exported, export
from paceline.replica.pieces.parts import Arguments

__all__ = ["ExportedLayer", "export_layers"]


class ExportedLayer(NamedTuple):
    """One layer, and its operations."""

    name: str
    layer: nn.Module
    exported: Exported
    """Shared by layers that are alike: it may be that of an earlier one."""


def export_layers(module: nn.Module, arguments: Arguments, samples: int) -> list[ExportedLayer]:
    """The layers of a module that `is_chain`, in forward order, traced with a batch of any size."""
    value, found = only_input(arguments), []
    tried: dict[Hashable, tuple[Exported, Any]] = {}
    for name, layer in layers_in("", module):
        key = likeness(layer), shapes_of(value)
        if None in key or key not in tried:
            tried[key] = export(layer, Arguments((value,), {}), samples), _made(layer, value)
        exported, value = tried[key]
        found.append(ExportedLayer(name, layer, exported))
    return found


def _made(layer: nn.Module, value: Any) -> Any:
    """What a layer makes, with copies of its parameters and buffers: those of the layer stay as they are."""
    state = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    copies = tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, state)
    with torch.no_grad():
        return functional_call(layer, copies, (value,))
