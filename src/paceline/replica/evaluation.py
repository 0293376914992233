"""What a module achieves on samples that it does not learn from: batch by batch, by one metric or several.

Where all metrics have names, ranks that hold the same module can share the batches: what each batch adds to the metrics
is found on one of them (`parts_of`), and put together in the order of the batches (`put_together`). That gives the bits
that one rank alone would find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import ConfigurationError
from paceline.replica.calls import outputs_of, predictions_of, target_of
from paceline.replica.devices import CPU, moved
from paceline.replica.meters import NamedMeter, meter_of, named_meter
from paceline.replica.samples import Samples
from paceline.task import Task

__all__ = ["evaluate", "is_in_parts", "parts_of", "put_together"]

Begin = Callable[[int], None]
"""Called before each test batch with its number: what is drawn for a batch must not depend on those before it."""


@torch.no_grad()
def evaluate(
    task: Task,
    module: nn.Module,
    samples: Samples,
    device: torch.device = CPU,
    begin: Begin = lambda _number: None,
) -> dict[str, float]:
    """The task's metrics over all samples, with the module in evaluation mode for as long as it takes."""
    # A metric that has tensors of its own, as those of torchmetrics do, wants them where the outputs are.
    meters = {name: moved(meter_of(name, given, task.loss), device) for name, given in task.metrics().items()}
    with _evaluation_mode(module):
        for number, indices in enumerate(samples.ranges(task.test_batch_size)):
            begin(number)
            seen = _Seen(task, module, moved(samples.fetch(indices), device))
            for meter in meters.values():
                meter.update(*seen.by(meter))
    return {name: _number(name, meter.compute()) for name, meter in meters.items()}


def is_in_parts(task: Task) -> bool:
    """Whether the task's metrics can be put together of what single batches add to them."""
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
    """What the test batches of these numbers add to each metric: a float64 tensor (batches, metrics, 2)."""
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
    """The metrics of all test batches, given what `parts_of` found of each, in their order."""
    meters = _named_meters(task)
    for batch in parts.tolist():
        for meter, part in zip(meters.values(), batch, strict=True):
            meter.add(*part)
    return {name: _number(name, meter.compute()) for name, meter in meters.items()}


def _named_meters(task: Task) -> dict[str, NamedMeter]:
    return {name: named_meter(str(given), task.loss) for name, given in task.metrics().items()}


class _Seen:
    """What a metric is given of one batch."""

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
        remedy = 'say which model is asked for what: Task(predict=lambda model, batch: model["g"](batch[0]))'
        raise ConfigurationError("predict", "must be given where there are several models", None, remedy)
    return outputs_of(task, module, batch)


@contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    # Layer by layer: the user may have some in evaluation mode all the time.
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
        remedy = "average it over the classes, or give each a metric of its own"
        raise ConfigurationError(name, "must give one number", shape, remedy) from None
