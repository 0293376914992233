"""What a module achieves on samples that it does not learn from: batch by batch, by one metric or several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline.errors import ConfigurationError
from paceline.replica.calls import outputs_of, predictions_of, target_of
from paceline.replica.devices import CPU, moved
from paceline.replica.meters import meter_of
from paceline.replica.samples import Samples
from paceline.task import Task

__all__ = ["evaluate"]


@torch.no_grad()
def evaluate(task: Task, module: nn.Module, samples: Samples, device: torch.device = CPU) -> dict[str, float]:
    """The task's metrics over all samples, with the module in evaluation mode for as long as it takes."""
    # A metric that has tensors of its own, as those of torchmetrics do, wants them where the outputs are.
    meters = {name: moved(meter_of(name, given, task.loss), device) for name, given in task.metrics().items()}
    with _evaluation_mode(module):
        for indices in samples.ranges(task.test_batch_size):
            batch = moved(samples.fetch(indices), device)
            outputs, targets = _outputs(task, module, batch), target_of(batch)
            predictions = outputs if task.predict is not None else predictions_of(outputs)
            for meter in meters.values():
                meter.update(outputs if getattr(meter, "takes_all_outputs", False) else predictions, targets)
    return {name: _number(name, meter.compute()) for name, meter in meters.items()}


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
