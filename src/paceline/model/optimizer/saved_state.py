"""Optimizer state of a replica, saved by parameter name, so that it can be restored with any other sharding.

A tensor is named `optimizer/NAME/KEY`, for example `optimizer/0.weight/momentum_buffer`. With several optimizers, it is
named `optimizer.WHICH/NAME/KEY`. If a shard has only a part of a parameter, NAME is the range of that part in the flat
parameter: `0.weight[3:70]`. If matrices are split, NAME has ranges along a dimension: `0.weight[1@8:16+24:32]`. Both
may be combined: `0.weight[1@8:16][3:70]` is a range of that part, flattened. State that is not elementwise, such as
Adam's count of steps, is saved once for each parameter.

For a learning-rate schedule, the number of updates is saved. Restoring repeats these updates, which gives the same
rates for any schedule. For a schedule that depends on a metric, its own `state_dict` is saved.
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
from paceline.model.layout import Layout, Within
from paceline.model.optimizer.flat import FlatOptimizer
from paceline.model.optimizer.updates import FlatOptimizers, Updates

_KIND = "optimizer"
_NAME = re.compile(
    r"optimizer(?:\.(?P<which>[^/]+))?/(?P<name>.+?)"
    r"(?:\[(?P<dim>\d+)@(?P<ranges>\d+:\d+(?:\+\d+:\d+)*)\])?(?:\[(?P<a>\d+):(?P<b>\d+)\])?/(?P<key>[^/]+)"
)


def keep_updates(
    updates: Updates, layout: Layout, *, with_unused: bool = False
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return the optimizers' state tensors (not copies), and for each shard the other state, in types that JSON
    supports.

    With `with_unused`, also restored state that no update has used yet. It is out of date if other ranks have updated
    the model since.
    """
    if with_unused and updates.kept is not None and not updates.have_begun:
        return updates.kept.unused()
    tensors: dict[str, Tensor] = {}
    facts: list[dict[str, Any]] = []
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
    """Add an optimizer's tensors to `tensors` by name. Return its plain numbers, by parameter."""
    numbers: dict[str, dict[str, Any]] = {}
    for start, length, state in optimizer.remembered():
        for key, value in state.items():
            for number, a, b in _parts(layout, start, start + length):
                name = layout.names[number]
                if isinstance(value, Tensor) and value.dim() > 0 and value.numel() == length:
                    part = value.reshape(-1)[a - start : b - start]
                    tensors[f"{kind}/{_label(layout, number, a, b)}/{key}"] = _shaped(layout, number, part)
                elif isinstance(value, Tensor):
                    tensors[f"{kind}/{name}/{key}"] = value
                elif isinstance(value, bool | int | float):
                    numbers.setdefault(name, {})[key] = value
                elif value is not None:
                    remedy = "use an optimizer with a state of tensors and numbers"
                    bound = f"must not have {type(value).__name__} values ({key!r}) in a state to be saved"
                    raise ConfigurationError("optimizer", bound, type(optimizer.optimizer).__name__, remedy)
    return numbers


def _parts(layout: Layout, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each parameter in a range of the flat tensor, and the part of the range within it."""
    number = max(0, bisect_right(layout.offsets, start) - 1)
    while number < len(layout.names) and layout.offsets[number] < stop:
        a, b = max(layout.offsets[number], start), min(layout.offsets[number + 1], stop)
        if a < b:
            yield number, a, b
        number += 1


def _label(layout: Layout, number: int, a: int, b: int) -> str:
    """Return a parameter's name, with the part that is stored and the range, unless it is the whole parameter."""
    offset, name = layout.offsets[number], layout.names[number]
    within = layout.within.get(name)
    if within is not None:
        name += f"[{within.dim}@{'+'.join(f'{start}:{stop}' for start, stop in within.stretches)}]"
    # A scalar parameter gets a range too. Otherwise its tensor could be mistaken for a count of steps.
    whole = b - a == layout.offsets[number + 1] - offset and layout.shapes[number] != ()
    return name if whole else f"{name}[{a - offset}:{b - offset}]"


def _shaped(layout: Layout, number: int, part: Tensor) -> Tensor:
    shape = layout.shapes[number]
    return part.view(shape) if part.numel() == shape.numel() and shape != () else part


@dataclass(slots=True)
class _Values:
    """Saved state of one parameter under one key."""

    parts: list[tuple[int, int, Tensor]] = field(default_factory=list)
    """Flat tensors, with start and end in the flat parameters."""
    once: Any = None
    """A number, or a tensor that is not elementwise."""
    whole: Tensor | None = None
    """State of the whole matrix, if it was split when it was saved or is split now."""
    known: Tensor | None = None
    """Mask of the elements of `whole` that are known."""

    def into_whole(self, shape: torch.Size, tensor: Tensor) -> tuple[Tensor, Tensor]:
        if self.whole is None or self.known is None:
            self.whole = torch.zeros(shape, dtype=tensor.dtype)
            self.known = torch.zeros(shape, dtype=torch.bool)
        return self.whole, self.known


class SavedOptimizerState:
    """Saved optimizer state of one rank, or of several ranks together."""

    def __init__(
        self, layout: Layout, shards: Iterable[tuple[Mapping[str, Tensor], Sequence[Mapping[str, Any]]]]
    ) -> None:
        """`shards` has, for each rank, its tensors by name (others are ignored), and the facts from `keep_updates`."""
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

    def laid_out(self, layout: Layout) -> SavedOptimizerState:
        """Return the same state for a replica that stores only some of the parameters."""
        return SavedOptimizerState(layout, self._shards)

    def unused(self) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
        """Return the state as it was saved. It is saved again if no update has used it."""
        tensors = {
            name: tensor
            for each, _ in self._shards
            for name, tensor in each.items()
            if _NAME.fullmatch(name) is not None
        }
        return tensors, [dict(each) for each in self._facts]

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
        """Copy state of a matrix that was or is split into the whole matrix. Return False for other state."""
        within = self._layout.within.get(found["name"])
        shape = self._layout.shapes[self._numbers[found["name"]]] if within is None else within.shape
        if found["dim"] is None and (within is None or (found["a"] is None and tensor.shape != shape)):
            return False
        places = _saved_places(found, shape)
        whole, known = values.into_whole(shape, tensor)
        whole.view(-1)[places] = tensor.reshape(-1)
        known.view(-1)[places] = True
        return True

    def _take_parts(self) -> None:
        """Extract this layout's part of the known state of whole matrices."""
        for (_, number), by_key in self._values.items():
            offset, within = self._layout.offsets[number], self._layout.within.get(self._layout.names[number])
            for values in by_key.values():
                if values.whole is None or values.known is None:
                    continue
                whole, known = values.whole, values.known
                if within is not None:
                    whole, known = within.of(whole), within.of(known)
                flat = whole.reshape(-1)
                values.parts += [(offset + a, offset + b, flat[a:b]) for a, b in _runs(known.reshape(-1))]
                values.whole = values.known = None

    def fill(self, shard: tuple[int, int], optimizers: FlatOptimizers) -> None:
        """Restore the state of new optimizers of a shard."""
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
            remedy = "the checkpoint was sharded in another way: start a new run"
            bound = f"must have the optimizer's {key} of every parameter"
            raise ConfigurationError("checkpoint", bound, f"{int(missing.sum())} numbers missing", remedy)
        return flat


def _saved_places(found: re.Match[str], shape: torch.Size) -> Tensor | slice:
    """Return the places of a saved tensor in the flattened matrix of this shape."""
    own = slice(None) if found["a"] is None else slice(int(found["a"]), int(found["b"]))
    if found["dim"] is None:
        return own
    ends = [[int(end) for end in each.split(":")] for each in found["ranges"].split("+")]
    within = Within(shape, int(found["dim"]), tuple((start, stop) for start, stop in ends))
    return within.of(torch.arange(shape.numel()).view(shape)).reshape(-1)[own]


def _runs(known: Tensor) -> list[tuple[int, int]]:
    """Return start and end of each run of known elements."""
    ends = torch.diff(known.to(torch.int8), prepend=torch.zeros(1), append=torch.zeros(1)).nonzero().view(-1)
    return [(int(a), int(b)) for a, b in ends.view(-1, 2)]


# Modules


def keep_module(module: nn.Module, *, parameters: bool = True) -> dict[str, Tensor]:
    """Return the module's tensors by name, not copied. Frozen parameters are included: a step may change them."""
    found = {f"buffers/{name}": buffer for name, buffer in module.named_buffers()}
    if parameters:
        found |= {f"parameters/{name}": each.detach() for name, each in module.named_parameters()}
    return found


def load_module(module: nn.Module, own: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    """Copy saved tensors into the module: from `own` if it has them, otherwise from `others`."""
    for name, tensor in keep_module(module).items():
        kept = own.get(name, others.get(name))
        if kept is None or kept.shape != tensor.shape:
            found = "none" if kept is None else tuple(kept.shape)
            bound = f"must have {name} of shape {tuple(tensor.shape)}"
            raise ConfigurationError("checkpoint", bound, found, "give the task that it was made with")
        tensor.copy_(kept)


def names_of_state(module: nn.Module) -> dict[str, str]:
    """Return the saved name of each tensor in the module's state dict. Tied tensors have one saved name."""
    kept = {tensor.data_ptr(): name for name, tensor in keep_module(module).items() if tensor.numel()}
    state = module.state_dict()
    return {name: kept[tensor.data_ptr()] for name, tensor in state.items() if tensor.data_ptr() in kept}
