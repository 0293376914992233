"""What a module achieves on samples that it does not learn from."""

from __future__ import annotations

import torch
from torch import nn

from paceline.metrics import Metric, value_of
from paceline.replica.calls import outputs_of, target_of
from paceline.replica.samples import Samples
from paceline.task import Task

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
    return value_of(metric, torch.cat(outputs), torch.cat(targets))
