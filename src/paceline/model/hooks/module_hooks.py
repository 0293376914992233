"""Hooks of a module and of autograd that announce which units a computation uses.

- A block announces its units before its forward pass, and its end.
- Reading a parameter of a module announces its unit. So a parameter may be used without a call of its module: a head
  tied to an embedding, a penalty on all weights.
- Autograd announces a unit before a backward pass reads a saved tensor in the memory of the unit.
- A parameter with a new gradient passes the gradient to the store.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping, Sequence, ValuesView
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from paceline.model.activations import Activations, storage_of
from paceline.model.hooks.unit_tracker import UnitTracker

TakeGradient = Callable[[Tensor], None]


class ModuleHooks:
    """The hooks of one module. They do nothing while the tracker is not active."""

    def __init__(
        self,
        module: nn.Module,
        blocks: Sequence[str],
        places: Mapping[int, int],
        storages: Mapping[int, int],
        tracker: UnitTracker,
        take: TakeGradient,
    ) -> None:
        """`places` is the unit of each trained parameter, by `id`. `storages` is the unit of each storage."""
        self._places = places
        self._storages = storages
        self._tracker = tracker
        self.counted: Activations | None = None
        """Counter of the activations of the current forward pass. None if they are known."""
        self.always = self._units_of(module.parameters() if _is_scripted(module) else iter(()))
        """Units that each forward pass needs from its start: a scripted module has no hooks."""
        if tracker.frees_parameters:
            self._watch_blocks(module, blocks)
            self._watch_parameters(module)
        trained = [parameter for parameter in module.parameters() if id(parameter) in places]
        # The garbage collector cannot see that autograd references these hooks, so they must not refer to this
        # object.
        taken = weakref.WeakMethod(take)
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(_passing_to(taken))  # type: ignore[no-untyped-call]

    # Forward passes

    def _watch_blocks(self, module: nn.Module, blocks: Sequence[str]) -> None:
        for name in blocks:
            block = module.get_submodule(name)
            units = self._units_of(block.parameters())
            if units:
                block.register_forward_pre_hook(self._entering(units), prepend=True)
                block.register_forward_hook(self._leaving(units), always_call=True)
        for layer in module.modules():
            units = self._units_of(_unwatched(layer))
            if units:
                layer.register_forward_pre_hook(self._using(units))

    def _units_of(self, parameters: Iterator[nn.Parameter]) -> frozenset[int]:
        return frozenset(self._places[id(each)] for each in parameters if id(each) in self._places)

    def _entering(self, units: frozenset[int]) -> Callable[[nn.Module, Any], None]:
        tracker = self._tracker

        def enter(_block: nn.Module, _arguments: Any) -> None:
            tracker.enter(units)

        return enter

    def _leaving(self, units: frozenset[int]) -> Callable[[nn.Module, Any, Any], None]:
        tracker = self._tracker

        def announce(gradient: Tensor) -> None:
            tracker.use_in_backward(units)

        def leave(_block: nn.Module, _arguments: Any, made: Any) -> None:
            if not tracker.is_active:
                return
            tracker.leave()
            for leaf in tree_leaves(made):
                if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.grad_fn is not None:
                    leaf.register_hook(announce)  # type: ignore[no-untyped-call]

        return leave

    def _using(self, units: frozenset[int]) -> Callable[[nn.Module, Any], None]:
        tracker = self._tracker

        def use(_layer: nn.Module, _arguments: Any) -> None:
            tracker.use(units)

        return use

    def _watch_parameters(self, module: nn.Module) -> None:
        for each in module.modules():
            if type(each._parameters) is dict and any(
                id(p) in self._places for p in each._parameters.values()
            ):
                each._parameters = _WatchedParameters(each._parameters, self._announce)

    def _announce(self, parameters: Collection[Tensor | None]) -> None:
        tracker = self._tracker
        if tracker.is_active:
            units = {self._places[id(each)] for each in parameters if id(each) in self._places}
            if units:
                tracker.use(units)

    # Backward passes

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Return a context in which tensors that autograd saves announce their unit before they are read."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield

    def _pack(self, tensor: Tensor) -> tuple[Tensor, int, int | None]:
        saved = tensor.detach()
        unit = self._storages.get(storage_of(saved)) if saved.layout is torch.strided else None
        if unit is None and self.counted is not None:
            self.counted.note(saved)
        return saved, saved._version, unit

    def _unpack(self, packed: tuple[Tensor, int, int | None]) -> Tensor:
        tensor, version, unit = packed
        if tensor._version != version:  # autograd skips this check for tensors saved with hooks
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation"
            )
        if unit is not None:
            self._tracker.use_in_backward((unit,))
        return tensor


def _unwatched(layer: nn.Module) -> Iterator[nn.Parameter]:
    """Yield parameters that a call of this layer reads without attributes: those of RNNs, which have their own list,
    and those of scripted modules in it.
    """
    if isinstance(layer, nn.RNNBase):
        yield from layer.parameters()
    elif not _is_scripted(layer):
        for child in filter(_is_scripted, layer.children()):
            yield from child.parameters()


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


class _WatchedParameters(dict[str, Any]):
    """The parameters of one module. Reading a parameter announces it. A copy is a plain dictionary."""

    def __init__(self, of: Mapping[str, Any], announce: Callable[[Collection[Any]], None]) -> None:
        super().__init__(of)
        self._announce = announce

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        self._announce((found,))
        return found

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self._announce(super().values())
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        found = super().values()
        self._announce(found)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(super().items()),)


def _passing_to(take: weakref.WeakMethod[TakeGradient]) -> Callable[[Tensor], None]:
    def passed(parameter: Tensor) -> None:
        taken = take()
        if taken is not None:
            taken(parameter)

    return passed
