"""Facts of a model: operations, bytes, activations and parameters of its layers, counted once for each task.

Models with equal layers, and tasks that differ in their batch size only, share what is counted (see `collapsed`).
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from paceline.clusters.simulated.gradient_timer import MeasuredTimes
from paceline.clusters.simulated.models import operations_of
from paceline.costs.counted import Operations
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.errors import ConfigurationError
from paceline.model.cutting.chain import is_chain
from paceline.model.cutting.cut import Cut
from paceline.model.cutting.layer_signature import layer_signature, shapes_of
from paceline.model.cutting.layers import Layers, few_samples
from paceline.model.cutting.whole import count_model, summed, without_data
from paceline.model.engines.shape_model import ShapeModel
from paceline.model.memory.shape_segments import segment_bytes
from paceline.model.memory.shapes import resized, tried
from paceline.model.stages.passes import PassBytes
from paceline.planner.collapsed import FEW, Expanded, chain_names, long_runs, shortened
from paceline.task.task import Task

_KEPT_TASKS = 256
_KEPT_MODELS = 256


class Stored(NamedTuple):
    """Activation bytes of a part. Each is a + b x samples."""

    kept: tuple[float, float]
    given: tuple[float, float]
    """Inputs that are stored if the part is recomputed."""
    made: tuple[float, float]
    """Further bytes while it is recomputed."""


class StoredParts:
    """Activations of the parts of a model."""

    def __init__(self, parts: Sequence[Stored]) -> None:
        lines = np.array([(*each.kept, *each.given, *each.made) for each in parts]).reshape(len(parts), 6)
        self._sums = np.concatenate([np.zeros((1, 6)), np.cumsum(lines, axis=0)])

    def between(self, bounds: Sequence[int], samples: int) -> NDArray[np.float64]:
        """Return the bytes kept, given and made between each two of `bounds`, with a number of samples."""
        lines = np.diff(self._sums[list(bounds)], axis=0)
        found: NDArray[np.float64] = lines[:, ::2] + samples * lines[:, 1::2]
        return found


@dataclass(frozen=True, eq=False)
class Counted:
    """A model in parts, as one rank of a tensor group has them, with the activations of each part."""

    model: Any
    stored: Sequence[Stored]


class TaskFacts:
    """Facts of one task."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.is_shapes_only = is_on_meta(task.model)
        """Whether the model has no data, so that it cannot be computed."""
        module: Any = task.model if self.is_shapes_only else task.build_model(0).to("meta")
        self.module: nn.Module = module
        self.measured = MeasuredTimes()
        self.samples = Samples.of(task, 0)
        self.batches = GlobalBatches.of(task, self.samples, 0)
        self._layers: dict[tuple[int, bool], tuple[Layers, StoredParts]] = {}

    @cached_property
    def few(self) -> Any:
        """A few samples, without data."""
        return without_data(few_samples(self.samples, self.batches.slice(0, 0, 1)))

    @cached_property
    def shapes(self) -> ShapeModel:
        shapes = ShapeModel(self.task, self.module)
        shapes.memory.activations_of = lambda samples: round(self.activation_bytes(samples))
        return shapes

    @cached_property
    def task_of_shapes(self) -> Task:
        """The task with its model on the meta device, without what simulations of a few steps do not need."""
        one = copy.copy(self.task)  # `replace` would check everything again
        changes = {"model": self.module, "schedule": None, "schedule_every": 1, "test": None, "metric": None}
        for name, value in changes.items():
            object.__setattr__(one, name, value)
        return one

    @cached_property
    def operations(self) -> Operations:
        """Operations of a forward pass of one sample through the whole model."""
        if is_chain(self.module):
            parts = self.layers(1, sequence=False)[0].model.parts
            count = summed(parts)
        else:
            count = count_model(self.task, self.module, self.few)
        return operations_of(count, self.shapes.holding)

    @cached_property
    def tokens_per_sample(self) -> int | None:
        """Length of a sample's sequence; None if samples are not sequences of whole numbers."""
        first = self.few[0] if isinstance(self.few, tuple | list) else self.few
        is_text = getattr(first, "ndim", 0) == 2 and not first.is_floating_point()
        return int(first.shape[1]) if is_text else None

    @cached_property
    def parameter_kinds(self) -> dict[str, Hashable]:
        """For each parameter, what determines the bytes that it takes: parameters of one kind take equally many."""
        layout, state = self.shapes.holding.layout, sorted(self.shapes.memory.optimizer_state())
        starts = [each.start for each in state]
        kinds: dict[str, Hashable] = {
            name: (parameter.shape, parameter.dtype) for name, parameter in self.module.named_parameters()
        }
        for name, (first, stop) in zip(layout.names, pairwise(layout.offsets), strict=True):
            own = state[max(0, bisect_right(starts, first) - 1) : bisect_left(starts, stop)]
            per_value = tuple(each.nbytes / (each.stop - each.start) for each in own if each.stop > first)
            kinds[name] = kinds[name], per_value
        return kinds

    def activation_bytes(self, samples: int) -> float:
        """Return the activations of a pass of the whole model with a number of samples."""
        base, slope = self._activations
        return base + slope * samples

    @cached_property
    def _activations(self) -> tuple[float, float]:
        """Bytes without samples, and bytes of each sample. They are a + b x layers in each run of equal layers."""
        one, two = (self._whole_activations(samples) for samples in (1, 2))
        return _line(one, two)

    def _whole_activations(self, samples: int) -> float:
        few = shortened(self.module)
        found = self._passed_bytes(few, samples)
        if few is self.module:
            return found
        base = found
        for number, length in enumerate(long_runs(self.module)):
            one_more = self._passed_bytes(shortened(self.module, longer=number), samples)
            found += (length - FEW) * (one_more - base)
        return found

    def _passed_bytes(self, module: nn.Module, samples: int) -> float:
        return ShapeModel(self.task, module).memory.activations(samples, lambda: self.few)

    def layers(self, tensor: int, *, sequence: bool) -> tuple[Layers, StoredParts]:
        """Return the model in parts for one rank of a tensor group, and the activations of each part."""
        key = tensor, sequence
        if key not in self._layers:
            counted = self._counted(tensor, sequence)
            self._layers[key] = Layers(self.module, counted.model), StoredParts(counted.stored)
        return self._layers[key]

    def _counted(self, tensor: int, sequence: bool) -> Counted:
        short = shortened(self.module)
        counted = self._counted_short(short, tensor, sequence)
        if short is self.module:
            return counted
        expanded = Expanded(counted.model, self.module, chain_names(short))
        return Counted(expanded, [counted.stored[place] for place in expanded.sources])

    def _counted_short(self, short: nn.Module, tensor: int, sequence: bool) -> Counted:
        key = self._key(short, tensor, sequence)
        if key is None or key not in _models:
            layers = Layers.of(self.task, short, self.few, tensor=tensor, sequence=sequence)
            counted = Counted(layers.model, self._stored(short, layers))
            if key is None:
                return counted
            _models[key] = counted
            if len(_models) > _KEPT_MODELS:
                _models.popitem(last=False)
        return _models[key]

    def _key(self, short: nn.Module, tensor: int, sequence: bool) -> Hashable | None:
        """Return a key that is equal for models with equal facts. None if models cannot be compared."""
        task, names = self.task, chain_names(short)
        kinds = tuple(layer_signature(short.get_submodule(name)) for name in names)
        if not names or None in kinds or not isinstance(task.loss, Hashable):
            return None
        tied = len(list(short.parameters())) == len(list(short.named_parameters(remove_duplicate=False)))
        plan = repr(task.tensor_plan)
        return (
            kinds,
            tuple(names),
            shapes_of(self.few),
            task.loss,
            task.recompute,
            plan,
            tied,
            tensor,
            sequence,
        )

    def _stored(self, module: nn.Module, layers: Layers) -> list[Stored]:
        """Measure the activations of each layer with one sample and with two. Parts of a layer have equal shares."""
        cut = layers.in_one_stage(_layer_starts(layers, module))
        shapes = ShapeModel(self.task, module)
        one, two = (_measured(shapes, cut, resized(self.few, samples)) for samples in (1, 2))
        if one is None or two is None:
            raise ConfigurationError(
                "model", "must run without data", type(self.module).__name__, "see docs/shapes.md"
            )
        found: list[Stored] = []
        for number, (a, b) in enumerate(zip(one, two, strict=True)):
            parts = cut.bounds[number + 1] - cut.bounds[number]
            lines = (_line(getattr(a, name), getattr(b, name)) for name in ("kept", "given", "made"))
            found += [Stored(*((base / parts, slope / parts) for base, slope in lines))] * parts
        return found


_models: OrderedDict[Any, Counted] = OrderedDict()
_tasks: OrderedDict[int, TaskFacts] = OrderedDict()


def facts_of(task: Task) -> TaskFacts:
    """Return the facts of a task. They are stored for the tasks that were used last."""
    if id(task) not in _tasks or _tasks[id(task)].task is not task:
        _tasks[id(task)] = TaskFacts(task)
        if len(_tasks) > _KEPT_TASKS:
            _tasks.popitem(last=False)
    _tasks.move_to_end(id(task))
    return _tasks[id(task)]


def is_on_meta(model: Any) -> bool:
    """Return whether a model is a module of shapes only."""
    return isinstance(model, nn.Module) and all(each.is_meta for each in model.parameters())


def _measured(shapes: ShapeModel, cut: Cut, content: Any) -> list[PassBytes] | None:
    found: list[PassBytes] | None = tried(lambda: segment_bytes(shapes, cut, content))
    return found


def _layer_starts(layers: Layers, module: nn.Module) -> list[int]:
    """Return the places at which the layers of a chain begin, where a cut is possible."""
    parts = layers.model.parts
    names = chain_names(module)
    of = [next((n for n in names if f"{part.name}.".startswith(f"{n}.")), "") for part in parts]
    return [
        place
        for place in range(1, len(parts))
        if of[place] != of[place - 1] and not parts[place - 1].obstacle
    ]


def _line(one: float, two: float) -> tuple[float, float]:
    return 2 * one - two, two - one
