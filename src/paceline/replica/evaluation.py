"""What a module achieves on samples that it does not learn from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import ConfigurationError
from paceline.metrics import Metric, value_of
from paceline.replica.calls import outputs_of, target_of
from paceline.replica.samples import Samples
from paceline.task import Task
from paceline.task_checks import look_of

__all__ = ["Metric", "evaluate"]

_BATCH = 1024


@torch.no_grad()
def evaluate(task: Task, module: nn.Module, samples: Samples, metric: Metric) -> float:
    """The metric over all samples, with the module in evaluation mode for as long as it takes."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    outputs, targets = [], []
    for indices in samples.ranges(_BATCH):
        batch = samples.fetch(indices)
        outputs.append(outputs_of(task, module, batch))
        targets.append(target_of(batch))
    # Layer by layer: the user may have some in evaluation mode all the time.
    for layer, training in modes:
        layer.training = training
    return value_of(metric, _joined("outputs", outputs), _joined("targets", targets))


def _joined(what: str, parts: list[Any]) -> Tensor:
    if not isinstance(parts[0], Tensor):
        remedy = "let the model return a tensor in evaluation mode"
        raise ConfigurationError("metric", f"needs {what} that are tensors", look_of(parts[0]), remedy)
    return torch.cat(parts)
