"""A short model in place of one with many equal layers.

A Sequential with a sequence of equal layers is shortened: only three of them remain, the first, the last, and one that
stands for all others. Facts about the short model hold for the long one. Tracing 96 blocks then takes the time of
three.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, groupby
from typing import Any

from torch import nn

from paceline.context import GroupReduction
from paceline.model.cutting.chain import is_chain, layers_in
from paceline.model.cutting.layer_signature import layer_signature
from paceline.model.cutting.parts import Part
from paceline.model.tensor_parallel.spec import Shares

FEW = 3
"""Number of layers that remain of a run."""


def shortened(module: nn.Module, *, longer: int | None = None) -> nn.Module:
    """Return a short model with the same layers; the module itself if it is not a chain.

    The run number `longer` of `long_runs` keeps one more layer than the others.
    """
    return _shortened(module, count(), longer)


def _shortened(module: nn.Module, numbers: Iterator[int], longer: int | None) -> nn.Module:
    if not is_chain(module):
        return module
    kept = OrderedDict[str, nn.Module]()
    for run in _runs(module):
        is_longer = len(run) > FEW and next(numbers) == longer
        for name, layer in run[: FEW + is_longer]:
            kept[name] = _shortened(layer, numbers, longer)
    return nn.Sequential(kept)


def long_runs(module: nn.Module) -> list[int]:
    """Return the lengths of the runs that `shortened` shortens, in order. Layers that are chains count as they are."""
    found = []
    for run in _runs(module) if is_chain(module) else ():
        if len(run) > FEW:
            found.append(len(run))
        for _, layer in run[:FEW]:
            found += long_runs(layer)
    return found


def _runs(module: nn.Module) -> Iterator[list[tuple[str, nn.Module]]]:
    """Yield the runs of equal layers, each with their names."""
    layers = enumerate(module.named_children())
    keys = [(layer_signature(layer) or number, name, layer) for number, (name, layer) in layers]
    for _, run in groupby(keys, key=lambda each: each[0]):
        yield [(name, layer) for _, name, layer in run]


def stand_ins(module: nn.Module) -> list[tuple[str, str]]:
    """Return, for each layer of a chain, its name and the name of the layer of the short model that stands for it."""
    found = []
    for run in _runs(module):
        for number, (name, layer) in enumerate(run):
            stand_in = run[_stand_in(number, len(run))][0]
            if is_chain(layer) and len(layer):  # type: ignore[arg-type]
                inner = stand_ins(layer)
                found += [(f"{name}.{own}", f"{stand_in}.{other}") for own, other in inner]
            else:
                found.append((name, stand_in))
    return found


def _stand_in(number: int, length: int) -> int:
    """Return the number of the layer that stands for a layer of a run."""
    if length <= FEW or number == 0:
        return number
    return FEW - 1 if number == length - 1 else 1


class Expanded:
    """The parts of a long model, given those of its short model."""

    def __init__(self, short: Any, module: nn.Module, layers: Sequence[str]) -> None:
        """`short` is the short model in parts, and `layers` the names of its layers."""
        self._short = short
        self.parts: list[Part] = []
        self.sources: list[int] = []
        """Place of each part in the short model."""
        own = {name: _places(short.parts, name) for name in layers}
        after = max((place for places in own.values() for place in places), default=-1) + 1
        renamed: dict[str, str] = {}
        for name, stand_in in stand_ins(module):
            for place in own[stand_in]:
                self._add(place, stand_in, name, renamed)
        for place in range(after, len(short.parts)):  # the loss
            self._add(place, "", "", renamed)
        self.shares: Shares | None = getattr(short, "shares", None)
        if self.shares is not None:
            split = self.shares.of
            self.shares = Shares(
                self.shares.size, {new: split[old] for new, old in renamed.items() if old in split}
            )
        self.partial = frozenset(new for new, old in renamed.items() if old in getattr(short, "partial", ()))
        forced = set(getattr(short, "forced", ()))
        self.forced = tuple(
            place for place in range(1, len(self.parts)) if self.sources[place - 1] + 1 in forced
        )
        self.has_loss = getattr(short, "has_loss", False)

    def _add(self, place: int, old: str, new: str, renamed: dict[str, str]) -> None:
        part = self._short.parts[place]
        names = {name: _renamed(name, old, new) for name in part.parameters}
        renamed |= {to: name for name, to in names.items()}
        changed = replace(part, name=_renamed(part.name, old, new), parameters=tuple(names.values()))
        self.parts.append(changed)
        self.sources.append(place)

    @property
    def whole_operations(self) -> float:
        return sum(part.operations for part in self.parts)

    def reductions(self, place: int) -> tuple[GroupReduction, ...]:
        """See `Sharded.reductions`."""
        found: tuple[GroupReduction, ...] = self._short.reductions(self.sources[place - 1] + 1)
        return found

    def gradient_reductions(self, before: int, place: int) -> tuple[GroupReduction, ...]:
        """See `Sharded.gradient_reductions`."""
        end = self.sources[place - 1] + 1
        found: tuple[GroupReduction, ...] = self._short.gradient_reductions(
            max(0, end - (place - before)), end
        )
        return found


def _places(parts: Sequence[Part], layer: str) -> list[int]:
    return [place for place, part in enumerate(parts) if f"{part.name}.".startswith(f"{layer}.")]


def _renamed(name: str, old: str, new: str) -> str:
    return f"{new}{name.removeprefix(old)}" if old and f"{name}.".startswith(f"{old}.") else name


def chain_names(module: nn.Module) -> list[str]:
    return [name for name, _ in layers_in("", module)]
