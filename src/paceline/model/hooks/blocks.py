"""The blocks of a module that is not cut: parameters are gathered and freed when a block is called.

Blocks are similar to those that users of FSDP2 wrap: a block is a module of at most 1/n of the parameters. Larger
modules are divided into their children. Neighbours that are small together form one segment. Parameters outside of
all blocks form the first segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from paceline.context import Hooks, Segment
from paceline.errors import ConfigurationError
from paceline.model.cutting.cut import Cut
from paceline.model.cutting.layers import Layers, TrialSamples
from paceline.model.cutting.naming import Names
from paceline.model.cutting.parts import Arguments, Compute, Part
from paceline.task.task import Task

_ROOT = "(root)"


class Blocks:
    """Blocks of a module, one part for each segment. They cannot be computed one by one."""

    def __init__(self, names: Sequence[str], parts: Sequence[Part]) -> None:
        self.names = names
        """Names of all blocks."""
        self.parts = parts

    def needs_arguments(self, start: int, stop: int) -> bool:
        return True

    def compute(self, module: nn.Module, start: int, stop: int) -> Compute:
        def called(arguments: Arguments | None, _: Sequence[object]) -> object:
            assert arguments is not None
            assert (start, stop) == (0, len(self.parts)), "a module with hooks is called as a whole"
            return module(*arguments.args, **arguments.kwargs)

        return called


class BlockLayers:
    """Finds the blocks of a module. It has the methods of `Layers` that a strategy without stages uses."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._made: dict[int, Cut] = {}

    @property
    def most(self) -> int:
        return 1

    def cut(self, stages: int, cuts: Sequence[str] = (), *, finer: int | None = 1) -> Cut:
        """Return the module as one stage of about `finer` segments. One segment if None."""
        if stages != 1 or cuts:
            raise ConfigurationError("stages", "must be 1 for a model that cannot be cut", stages)
        count = finer or 1
        if count not in self._made:
            self._made[count] = _cut(self._module, count)
        return self._made[count]


def layers_or_blocks(
    task: Task, module: nn.Module, samples: TrialSamples, tensor: int, sequence: bool, hooks: Hooks
) -> Layers | BlockLayers:
    """Return the layers of a module, or its blocks. `hooks` is as in `Stages.cut`."""
    # BatchNorm layers share statistics in the middle of a pass, which hooks can interrupt anywhere.
    if hooks == "always" or (hooks == "fallback" and task.sync_batch_norm):
        return BlockLayers(module)
    if hooks == "never":
        return Layers.of_samples(task, module, samples, tensor=tensor, sequence=sequence)
    try:
        return Layers.of(task, module, samples.few(), tensor=tensor, sequence=sequence)
    except ConfigurationError:
        return BlockLayers(module)


def _cut(module: nn.Module, count: int) -> Cut:
    groups = _groups(module, count)
    names = [
        [f"{block}.{own}" for block in group for own, _ in module.get_submodule(block).named_parameters()]
        for group in groups
    ]
    owned = [_registered(module, each) for each in names]
    in_blocks = {name for each in owned for name in each}
    owned.insert(0, tuple(name for name, _ in module.named_parameters() if name not in in_blocks))
    groups.insert(0, [])
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    counts = [sum(sizes[name] for name in each) for each in owned]
    segments = tuple(
        Segment(
            number=number,
            stage=0,
            first=group[0] if group else _ROOT,
            last=group[-1] if group else _ROOT,
            parameters=owned[number],
            buffers=(),  # every rank has all of them
            parameter_count=counts[number],
            operations=counts[number],
            share=counts[number] / (sum(counts) or 1),
            bytes_in=0,
            values_out=(),
            is_block=True,
        )
        for number, group in enumerate(groups)
    )
    parts = [Part(name=each.first, operations=each.operations, crossing=()) for each in segments]
    blocks = Blocks([name for group in groups for name in group], parts)
    return Cut(blocks, tuple(range(len(parts) + 1)), segments, Names([part.name for part in parts]))


def _registered(module: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    """Return the first name of each parameter. A tied parameter has several."""
    first = {id(p): name for name, p in module.named_parameters()}
    every = dict(module.named_parameters(remove_duplicate=False))
    return tuple(dict.fromkeys(first[id(every[name])] for name in names))


def _groups(module: nn.Module, count: int) -> list[list[str]]:
    """Return the names of blocks, in groups of at most 1/count of the parameters, or of one block."""
    most = _size(module) / count
    groups: list[list[str]] = []
    filled = 0.0
    for name, block in _blocks(module, "", most):
        size = _size(block)
        if not groups or filled + size > most:
            groups.append([])
            filled = 0.0
        groups[-1].append(name)
        filled += size
    return groups


def _blocks(module: nn.Module, name: str, most: float) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, torch.jit.ScriptModule):  # has no hooks: its parameters are outside of all blocks
        return
    children = [(own, child) for own, child in module.named_children() if _size(child)]
    fits = _size(module) <= most or not children
    is_called = type(module).forward is not nn.Module.forward  # a ModuleList, for example, is never called
    if name and fits and is_called:
        yield name, module
        return
    for own, child in children:
        yield from _blocks(child, f"{name}.{own}" if name else own, most)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
