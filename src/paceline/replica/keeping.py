"""What the optimizers of a replica remember, by the names of parameters: so that it fits any other cut of them.

A tensor is called `optimizer/NAME/KEY`, as `optimizer/0.weight/momentum_buffer`; of one of several optimizers,
`optimizer.WHICH/NAME/KEY`. Where a shard has a part of a parameter only, NAME is that part, flat: `0.weight[3:70]`;
or, where matrices are split, a stretch along a dimension: `0.weight[1@8:16]`.
What is no number for each element, such as Adam's count of steps, is there once for each parameter.

Of a learning-rate schedule the number of its updates is kept: they are made again, which gives the same rates whatever
the schedule is. Only one that goes by a metric is kept as it says itself.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import ConfigurationError
from paceline.replica.layout import Layout
from paceline.replica.optimizer import FlatOptimizer
from paceline.replica.optimizers import FlatOptimizers, Updates

__all__ = ["KeptUpdates", "keep_module", "keep_updates", "load_module", "names_of_state"]

_KIND = "optimizer"
_NAME = re.compile(
    r"optimizer(?:\.(?P<which>[^/]+))?/(?P<name>.+?)(?:\[(?:(?P<dim>\d+)@)?(?P<a>\d+):(?P<b>\d+)\])?/(?P<key>[^/]+)"
)


def keep_updates(updates: Updates, layout: Layout) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The tensors that the optimizers remember, which are theirs, and for each shard what JSON can hold."""
    tensors: dict[str, Tensor] = {}
    facts = []
    for (start, stop), optimizers in updates.by_shard.items():
        by_name: dict[str, Any] = {}
        for which, each in optimizers.by_name.items():
            numbers = _keep(_kind(which), each, layout, tensors)
            by_name[which] = {**each.schedule_facts(), "numbers": numbers}
        facts.append({"shard": [start, stop], "elsewhere": optimizers.elsewhere, "optimizers": by_name})
    return tensors, facts


def _kind(which: str) -> str:
    return f"{_KIND}.{which}" if which else _KIND


def _keep(
    kind: str, optimizer: FlatOptimizer, layout: Layout, tensors: dict[str, Tensor]
) -> dict[str, dict[str, Any]]:
    """Enter an optimizer's tensors by name; return its plain numbers, by parameter."""
    numbers: dict[str, dict[str, Any]] = {}
    for start, length, state in optimizer.remembered():
        for key, value in state.items():
            for number, a, b in _parts(layout, start, start + length):
                name = layout.names[number]
                if isinstance(value, Tensor) and value.dim() > 0 and value.numel() == length:
                    part = value.reshape(-1)[a - start : b - start]
                    for label, each in _labelled(layout, number, a, b, part):
                        tensors[f"{kind}/{label}/{key}"] = each
                elif isinstance(value, Tensor):
                    tensors[f"{kind}/{name}/{key}"] = value
                elif isinstance(value, bool | int | float):
                    numbers.setdefault(name, {})[key] = value
                elif value is not None:
                    remedy = "use an optimizer whose state is tensors and numbers"
                    bound = (
                        f"must not remember {type(value).__name__} values ({key!r}) where it is to be kept"
                    )
                    raise ConfigurationError("optimizer", bound, type(optimizer.optimizer).__name__, remedy)
    return numbers


def _parts(layout: Layout, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The parameters that a part of the flat tensor touches, by number; where in the flat tensor, from and to."""
    number = max(0, bisect_right(layout.offsets, start) - 1)
    while number < len(layout.names) and layout.offsets[number] < stop:
        a, b = max(layout.offsets[number], start), min(layout.offsets[number + 1], stop)
        if a < b:
            yield number, a, b
        number += 1


def _labelled(layout: Layout, number: int, a: int, b: int, part: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A part of the flat tensor within one parameter, by the names of what it is."""
    name = layout.names[number]
    within = layout.within.get(name)
    if within is None:
        yield _label(layout, number, a, b), _shaped(layout, number, part)
        return
    assert b - a == layout.shapes[number].numel(), "a part of a split matrix is kept as a whole"
    sizes = [stop - start for start, stop in within.stretches]
    pieces = torch.split(part.view(layout.shapes[number]), sizes, within.dim)
    for (start, stop), piece in zip(within.stretches, pieces, strict=True):
        yield f"{name}[{within.dim}@{start}:{stop}]", piece


def _label(layout: Layout, number: int, a: int, b: int) -> str:
    """A parameter's name, with the part of it that is meant if that is not all of it."""
    offset, name = layout.offsets[number], layout.names[number]
    # A parameter that is a single number is called by a part too, or its tensor would look like a count of steps.
    whole = b - a == layout.offsets[number + 1] - offset and layout.shapes[number] != ()
    return name if whole else f"{name}[{a - offset}:{b - offset}]"


def _shaped(layout: Layout, number: int, part: Tensor) -> Tensor:
    shape = layout.shapes[number]
    return part.view(shape) if part.numel() == shape.numel() and shape != () else part


@dataclass(slots=True)
class _Values:
    """What is kept of one parameter under one key."""

    parts: list[tuple[int, int, Tensor]] = field(default_factory=list)
    """Flat, with where each begins and ends in the flat parameters."""
    once: Any = None
    """A number, or a tensor that is not by element."""
    whole: Tensor | None = None
    """Where matrices are, or were, split: what is known of the whole one."""
    known: Tensor | None = None
    """Which of its elements are."""

    def into_whole(self, shape: torch.Size, tensor: Tensor) -> tuple[Tensor, Tensor]:
        if self.whole is None or self.known is None:
            self.whole = torch.zeros(shape, dtype=tensor.dtype)
            self.known = torch.zeros(shape, dtype=torch.bool)
        return self.whole, self.known


class KeptUpdates:
    """What the optimizers of one rank, or of several together, remembered."""

    def __init__(
        self, layout: Layout, shards: Iterable[tuple[Mapping[str, Tensor], Sequence[Mapping[str, Any]]]]
    ) -> None:
        """Of each rank: its tensors by name, among others perhaps, and what `keep_updates` gave besides."""
        self._layout = layout
        self._numbers = {name: number for number, name in enumerate(layout.names)}
        self._values: dict[tuple[str, int], dict[str, _Values]] = {}
        self._facts: list[Mapping[str, Any]] = []
        self._shards = list(shards)
        for tensors, facts in self._shards:
            self._facts += facts
            for name, tensor in tensors.items():
                self._enter(name, tensor)
        self._take_parts()
        for each in self._facts:
            for which, kept in each["optimizers"].items():
                for name in kept["numbers"].keys() & self._numbers.keys():
                    for key, value in kept["numbers"][name].items():
                        self._of(which, name, key).once = value

    def laid_out(self, layout: Layout) -> KeptUpdates:
        """The same for a replica that has some of the parameters only."""
        return KeptUpdates(layout, self._shards)

    @property
    def is_empty(self) -> bool:
        return not self._facts

    def _of(self, which: str, name: str, key: str) -> _Values:
        return self._values.setdefault((which, self._numbers[name]), {}).setdefault(key, _Values())

    def _enter(self, name: str, tensor: Tensor) -> None:
        found = _NAME.fullmatch(name)
        if found is None or found["name"] not in self._numbers:
            return
        number = self._numbers[found["name"]]
        values, offset = (
            self._of(found["which"] or "", found["name"], found["key"]),
            self._layout.offsets[number],
        )
        if self._enter_split(found, values, tensor):
            return
        if found["a"] is not None:
            values.parts.append((offset + int(found["a"]), offset + int(found["b"]), tensor))
        elif tensor.shape == self._layout.shapes[number]:
            values.parts.append((offset, offset + tensor.numel(), tensor.reshape(-1)))
        else:
            values.once = tensor

    def _enter_split(self, found: re.Match[str], values: _Values, tensor: Tensor) -> bool:
        """Whether it is of a matrix that was split, or is to be: then it is first put into the whole one."""
        within = self._layout.within.get(found["name"])
        shape = self._layout.shapes[self._numbers[found["name"]]] if within is None else within.shape
        if found["dim"] is None and (within is None or (found["a"] is None and tensor.shape != shape)):
            return False
        for each, value in zip(values.into_whole(shape, tensor), (tensor, torch.tensor(True)), strict=True):
            if found["dim"] is not None:
                a, b = int(found["a"]), int(found["b"])
                each.narrow(int(found["dim"]), a, b - a).copy_(value)
            elif found["a"] is not None:
                each.view(-1)[int(found["a"]) : int(found["b"])].copy_(value)
            else:
                each.copy_(value)
        return True

    def _take_parts(self) -> None:
        """Of what was put into whole matrices, what this layout has."""
        for (_, number), by_key in self._values.items():
            offset, within = self._layout.offsets[number], self._layout.within.get(self._layout.names[number])
            for values in by_key.values():
                if values.whole is None or values.known is None:
                    continue
                whole, known = values.whole, values.known
                if within is not None:
                    whole, known = within.of(whole), within.of(known)
                if known.all():
                    values.parts.append((offset, offset + whole.numel(), whole.reshape(-1)))
                values.whole = values.known = None

    def fill(self, shard: tuple[int, int], optimizers: FlatOptimizers) -> None:
        """Let new optimizers of a shard remember it."""
        if self.is_empty:
            return
        exact = [facts for facts in self._facts if tuple(facts["shard"]) == shard]
        facts = (exact or self._facts)[0]
        optimizers.elsewhere = facts["elsewhere"]
        for which, each in optimizers.by_name.items():
            for piece, start in each.pieces():
                self._fill_piece(which, each, piece, start)
            each.restore_schedule(facts["optimizers"][which])

    def _fill_piece(self, which: str, optimizer: FlatOptimizer, piece: Tensor, start: int) -> None:
        touched = [number for number, _, _ in _parts(self._layout, start, start + piece.numel())]
        kept = [self._values.get((which, number), {}) for number in touched]
        for key in dict.fromkeys(key for each in kept for key in each):
            values = [each.get(key, _Values()) for each in kept]
            once = next((each.once for each in values if each.once is not None), None)
            if once is None:
                flat = self._put_together(which, key, values, start, start + piece.numel())
                optimizer.optimizer.state[piece][key] = flat.to(piece.device).view(piece.shape)
            else:
                own = once.clone() if isinstance(once, Tensor) else once
                optimizer.optimizer.state[piece][key] = own

    def _put_together(self, which: str, key: str, values: Sequence[_Values], start: int, stop: int) -> Tensor:
        parts = [part for each in values for part in each.parts]
        flat = torch.empty(stop - start, dtype=parts[0][2].dtype if parts else None)
        missing = torch.ones(stop - start, dtype=torch.bool)
        for a, b, tensor in parts:
            low, high = max(a, start), min(b, stop)
            if low < high:
                flat[low - start : high - start] = tensor[low - a : high - a]
                missing[low - start : high - start] = False
        if missing.any():
            remedy = "it is of a run that was parted in another way: begin anew"
            bound = f"must have the optimizer's {key} of every parameter"
            raise ConfigurationError("checkpoint", bound, f"{int(missing.sum())} numbers less", remedy)
        return flat


# The module itself


def keep_module(module: nn.Module, *, parameters: bool = True) -> dict[str, Tensor]:
    """The module's tensors by name, in use as they are. Frozen parameters too: a step of the user's may change them."""
    found = {f"buffers/{name}": buffer for name, buffer in module.named_buffers()}
    if parameters:
        found |= {f"parameters/{name}": each.detach() for name, each in module.named_parameters()}
    return found


def load_module(module: nn.Module, own: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    """Overwrite the module's tensors by those that were kept of it; by others where none were."""
    for name, tensor in keep_module(module).items():
        kept = own.get(name, others.get(name))
        if kept is None or kept.shape != tensor.shape:
            found = "none" if kept is None else tuple(kept.shape)
            bound = f"must have {name} of shape {tuple(tensor.shape)}"
            raise ConfigurationError("checkpoint", bound, found, "give the task that it was made with")
        tensor.copy_(kept)


def names_of_state(module: nn.Module) -> dict[str, str]:
    """Of each tensor in the module's state dict, which may have one under two names: its name among those kept."""
    kept = {tensor.data_ptr(): name for name, tensor in keep_module(module).items() if tensor.numel()}
    state = module.state_dict()
    return {name: kept[tensor.data_ptr()] for name, tensor in state.items() if tensor.data_ptr() in kept}
