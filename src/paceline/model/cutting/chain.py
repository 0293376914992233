"""Parts of an `nn.Sequential`: its layers, in forward order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from paceline.errors import ConfigurationError
from paceline.model.cutting.counting import Count, counted, nbytes_of
from paceline.model.cutting.layer_signature import layer_signature, shapes_of
from paceline.model.cutting.parts import Arguments, Compute, Part, cannot_cross


def is_chain(module: nn.Module) -> bool:
    """Return whether a module only calls its children in order."""
    return type(module) is nn.Sequential and not module._forward_hooks and not module._forward_pre_hooks


class Chain:
    """Parts of a Sequential. Nested Sequentials are flattened."""

    def __init__(self, module: nn.Module, arguments: Arguments, samples: int) -> None:
        """`arguments` are the model's arguments for `samples` samples. Costs are counted without computing."""
        self._names = [name for name, _ in layers_in("", module)]
        trial = _Trial(module, self._names, only_input(arguments))
        self.parts = _measure(module, self._names, trial, samples)

    def needs_arguments(self, start: int, stop: int) -> bool:
        return start == 0

    def compute(self, module: nn.Module, start: int, stop: int) -> Compute:
        layers = [module.get_submodule(name) for name in self._names[start:stop]]
        is_last = stop == len(self._names)

        def run(arguments: Arguments | None, values: Sequence[Tensor]) -> Any:
            if start == 0:
                assert arguments is not None
                value = only_input(arguments)
            else:
                (value,) = values
            for layer in layers:
                value = layer(value)
            return value if is_last else [value]

        return run


def layers_in(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a Sequential, including nested Sequentials, by name in forward order."""
    for name, child in module.named_children():
        if is_chain(child) and len(child):  # type: ignore[arg-type]
            yield from layers_in(f"{prefix}{name}.", child)
        else:
            yield f"{prefix}{name}", child


def only_input(arguments: Arguments) -> Any:
    """Return the input of a Sequential. Raise ConfigurationError unless there is exactly one."""
    given = [*arguments.args, *arguments.kwargs.values()]
    if len(given) != 1:
        bound = "must yield one input for a model that is an nn.Sequential"
        raise ConfigurationError("data", bound, len(given), "give inputs and then a target")
    return given[0]


def _measure(module: nn.Module, names: Sequence[str], trial: _Trial, samples: int) -> list[Part]:
    known = {id(parameter): name for name, parameter in module.named_parameters()}
    buffers = {id(buffer): name for name, buffer in module.named_buffers()}
    parts = []
    for place, name in enumerate(names):
        layer = module.get_submodule(name)
        made, count = trial.next()
        after = module.get_submodule(names[place + 1]) if place + 1 < len(names) else None
        part = Part(
            name=name,
            operations=count.operations / samples,
            flops=count.flops / samples,
            moved_bytes=count.moved_bytes / samples,
            launches=count.launches,
            weight_bytes=count.weight_bytes,
            crossing=(nbytes_of(made) // samples,),
            obstacle=_obstacle(name, made, names, place, after),
            parameters=tuple(dict.fromkeys(known[id(each)] for each in layer.parameters())),
            buffers=tuple(dict.fromkeys(buffers[id(each)] for each in layer.buffers())),
        )
        parts.append(part)
    return parts


class _Trial:
    """Runs the layers on the meta device. A layer that reads its data runs on real data."""

    def __init__(self, module: nn.Module, names: Sequence[str], value: Any) -> None:
        self._module = module
        self._names = names
        self._place = 0
        self._given = value
        self._blank = _without_data(value)
        self._tried: dict[Hashable, tuple[Any, Count]] = {}
        """Results by layer and input shapes. Equal layers are not tried again."""

    def next(self) -> tuple[Any, Count]:
        """Return the output of the next layer, and its cost."""
        name = self._names[self._place]
        layer = self._module.get_submodule(name)
        self._place += 1
        key = layer_signature(layer), shapes_of(self._blank)
        if None in key or key not in self._tried:
            self._tried[key] = self._try(name, layer)
        self._blank, count = self._tried[key]
        return self._blank, count

    def _try(self, name: str, layer: nn.Module) -> tuple[Any, Count]:
        try:
            return _apply(layer, self._blank, _without_data)
        except Exception as error:
            return self._with_data(name, layer, error)

    def _with_data(self, name: str, layer: nn.Module, error: Exception) -> tuple[Any, Count]:
        if any(parameter.is_meta for parameter in self._module.parameters()):
            raise _refusal(name, layer, error) from error
        value, count = self._given, Count(0.0, 0.0, 0.0)
        for each in self._names[: self._place]:
            try:
                value, count = _apply(self._module.get_submodule(each), value, _copied)
            except Exception as cause:
                raise _refusal(each, self._module.get_submodule(each), cause) from cause
        return _without_data(value), count


def _apply(layer: nn.Module, value: Any, changed: Callable[[Any], Any]) -> tuple[Any, Count]:
    """Call a layer on changed copies of its parameters and buffers. The layer's own are not modified."""
    state = changed({**dict(layer.named_parameters()), **dict(layer.named_buffers())})
    with torch.no_grad():
        return counted(lambda: functional_call(layer, state, (value,)))


def _without_data(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach().to("meta") if isinstance(leaf, Tensor) else leaf, value)


def _copied(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, value)


def _obstacle(name: str, value: Any, names: Sequence[str], place: int, after: nn.Module | None) -> str:
    if after is None:
        return "it is the last layer"
    if reason := cannot_cross(value):
        return f"layer {name} gives {reason}"
    if getattr(after, "inplace", False):
        return f"layer {names[place + 1]} changes its input in place"
    return ""


def _refusal(name: str, layer: nn.Module, error: Exception) -> ConfigurationError:
    words = str(error).strip().splitlines() or [type(error).__name__]
    bound = f"must be one that can be cut, but its layer {name} ({type(layer).__name__}) cannot be tried"
    return ConfigurationError("model", bound, words[0], "check that it accepts the previous layer's output")
