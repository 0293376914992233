"""Evaluation of a module on test samples, batch by batch, with one metric or several.

If all metrics are named, ranks that hold the same module can share the batches. Each rank computes the contributions of
its batches (`parts_of`). They are combined in the order of the batches (`put_together`). The result is bit-identical to
that of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from paceline.data.samples import Samples
from paceline.errors import ConfigurationError
from paceline.model.devices import CPU, moved
from paceline.model.meters import NamedMeter, meter_of, named_meter
from paceline.task.calls import outputs_of, predictions_of, target_of
from paceline.task.task import Task

Begin = Callable[[int], None]
"""Called before each test batch with its number. Seeds the batch, so that its random numbers do not depend on
earlier batches.
"""


@torch.no_grad()
def evaluate(
    task: Task,
    module: nn.Module,
    samples: Samples,
    device: torch.device = CPU,
    begin: Begin = lambda _number: None,
) -> dict[str, float]:
    """Return the task's metrics over all samples. The module is in evaluation mode during the call."""
    # A metric with its own tensors (torchmetrics, for example) needs them on the device of the outputs.
    meters = {name: moved(meter_of(name, given, task.loss), device) for name, given in task.metrics().items()}
    with _evaluation_mode(module):
        for number, indices in enumerate(samples.ranges(task.test_batch_size)):
            begin(number)
            seen = _Seen(task, module, moved(samples.fetch(indices), device))
            for meter in meters.values():
                meter.update(*seen.by(meter))
    return {name: _number(name, meter.compute()) for name, meter in meters.items()}


def is_in_parts(task: Task) -> bool:
    """Return whether the task's metrics can be combined from contributions of single batches."""
    return all(isinstance(given, str) for given in task.metrics().values())


@torch.no_grad()
def parts_of(
    task: Task,
    module: nn.Module,
    samples: Samples,
    numbers: Sequence[int],
    device: torch.device,
    begin: Begin,
) -> Tensor:
    """Return the contribution of each of these test batches to each metric: a float64 tensor (batches, metrics, 2)."""
    meters = _named_meters(task).values()
    parts = torch.zeros(len(numbers), len(meters), 2, dtype=torch.float64)
    ranges = samples.ranges(task.test_batch_size)
    with _evaluation_mode(module):
        for row, number in zip(parts, numbers, strict=True):
            begin(number)
            seen = _Seen(task, module, moved(samples.fetch(ranges[number]), device))
            row.copy_(torch.tensor([meter.part(*seen.by(meter)) for meter in meters], dtype=torch.float64))
    return parts


def put_together(task: Task, parts: Tensor) -> dict[str, float]:
    """Return the metrics of all test batches, given the contributions from `parts_of`, in batch order."""
    meters = _named_meters(task)
    for batch in parts.tolist():
        for meter, part in zip(meters.values(), batch, strict=True):
            meter.add(*part)
    return {name: _number(name, meter.compute()) for name, meter in meters.items()}


def _named_meters(task: Task) -> dict[str, NamedMeter]:
    return {name: named_meter(str(given), task.loss) for name, given in task.metrics().items()}


class _Seen:
    """Inputs of a metric for one batch."""

    def __init__(self, task: Task, module: nn.Module, batch: Any) -> None:
        self._outputs, self._targets = _outputs(task, module, batch), target_of(batch)
        self._predictions = self._outputs if task.predict is not None else predictions_of(self._outputs)

    def by(self, meter: Any) -> tuple[Any, Any]:
        takes_all = getattr(meter, "takes_all_outputs", False)
        return self._outputs if takes_all else self._predictions, self._targets


def _outputs(task: Task, module: nn.Module, batch: Any) -> Any:
    if task.predict is not None:
        return task.predict(module, batch)
    if isinstance(module, nn.ModuleDict):
        remedy = 'give the function that returns the outputs: Task(predict=lambda model, batch: model["g"](batch[0]))'
        raise ConfigurationError("predict", "must be given for a task with several models", None, remedy)
    return outputs_of(task, module, batch)


@contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    # Layer by layer: the user may have put some layers into evaluation mode permanently.
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, training in modes:
            layer.training = training


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        remedy = "average it over the classes, or give one metric for each"
        raise ConfigurationError(name, "must give one number", shape, remedy) from None
