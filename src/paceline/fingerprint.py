"""What a run learned, in a few texts: runs of one task have the same, so that others are not compared by mistake."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.user_code import name_of

if TYPE_CHECKING:
    from torch import nn

    from paceline.task import Task

__all__ = ["differences", "fingerprint"]

NONE = "none"


def fingerprint(task: Task, module: nn.Module, *, samples: int, test_samples: int) -> dict[str, str]:
    """Model, data, batch size, loss, metric and target. Numbers of samples that are not known (0) are left out."""
    target = NONE if task.target is None else f"{task.target:g}"
    found = {
        "model": _model(module),
        "batch size": str(task.batch_size),
        "loss": name_of(task.loss) or NONE,
        "metric": name_of(task.metric) or NONE,
        "target": target,
    }
    counts = {"samples": samples, "test samples": test_samples}
    return found | {name: f"{count:,}" for name, count in counts.items() if count}


def _model(module: nn.Module) -> str:
    """How many parameters, and a hash of their names, shapes and types."""
    named = list(module.named_parameters())
    looks = [f"{name} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for name, p in named]
    digest = hashlib.sha256("\n".join(looks).encode()).hexdigest()[:8]
    return f"{sum(p.numel() for _, p in named):,} parameters ({digest})"


def differences(fingerprints: Mapping[str, Sequence[Mapping[str, str]]]) -> list[str]:
    """What differs between the runs of several names: a text for each. What a run does not know is passed over."""
    seen: dict[str, dict[str, list[str]]] = {}
    for name, prints in fingerprints.items():
        for key, value in (item for each in prints for item in each.items()):
            names = seen.setdefault(key, {}).setdefault(value, [])
            names.extend([] if name in names else [name])
    return [
        f"{key} {' and '.join(f'{value} ({_list(names)})' for value, names in values.items())}"
        for key, values in seen.items()
        if len(values) > 1
    ]


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
