"""The module of a rank that stores some segments, and its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import ConfigurationError
from paceline.model.cutting.cut import Cut
from paceline.model.layout import flatten
from paceline.task.loops import copied


def stripped(module: nn.Module, cut: Cut, held: Sequence[int]) -> nn.Module:
    """Return a copy of a module for the held segments.

    Parameters of other segments have no memory and are not trained. Parameters split by a tensor group are replaced by
    this rank's part.
    """
    kept = cut.parameters(held)
    changed: dict[int, Any] = {}
    for name, parameter in module.named_parameters():
        if name not in kept:
            blank = torch.empty_like(parameter, device="meta")
            changed[id(parameter)] = nn.Parameter(blank, requires_grad=False)
        elif (part := cut.part(name, parameter.detach())).shape != parameter.shape:
            changed[id(parameter)] = nn.Parameter(part, requires_grad=parameter.requires_grad)
    try:
        return copied(module, changed)
    except RuntimeError as error:
        bound = "must be a model that can be copied, if it is cut"
        remedy = "use torch.nn.utils.parametrizations instead of torch.nn.utils.weight_norm and the like"
        raise ConfigurationError("model", bound, type(module).__name__, remedy) from error


def buffers_of(module: nn.Module, cut: Cut, held: Sequence[int]) -> list[Tensor]:
    """Return the buffers of some segments of a module."""
    named = dict(module.named_buffers())
    names = dict.fromkeys(name for number in held for name in cut.segments[number].buffers)
    return [named[name] for name in names]


def by_dtype(buffers: Sequence[Tensor]) -> list[list[Tensor]]:
    """Group buffers by dtype."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for buffer in buffers:
        groups.setdefault(buffer.dtype, []).append(buffer)
    return list(groups.values())


def flat_by_dtype(buffers: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of the buffers, one flat tensor per dtype."""
    return [flatten(group, group[0].dtype, group[0].device) for group in by_dtype(buffers)]
