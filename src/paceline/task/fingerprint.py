"""Fingerprints of tasks: a few strings that are equal for runs of the same task, to detect wrong comparisons."""

from __future__ import annotations

import contextlib
import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.system.user_code import name_of
from paceline.task.checks import waits_for_metric

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from paceline.task.task import Task

NONE = "none"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_LONGEST = 200
_LISTED_GROUPS = 4
_UPDATES = (0, 1, 2, 3, 5, 10, 30, 100, 300, 1000)
"""Updates (or epochs) after which the learning rates are compared."""


def fingerprint(task: Task, module: nn.Module, *, samples: int, test_samples: int) -> dict[str, str]:
    """Return model, data, batch size, loss, metric and target as strings. Unknown sample counts (0) are left out."""
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
    """Return the number of parameters, and a hash of their names, shapes and dtypes."""
    named = list(module.named_parameters())
    looks = [f"{name} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for name, p in named]
    return f"{sum(p.numel() for _, p in named):,} parameters ({_digest(looks)})"


def settings(task: Task, module: nn.Module) -> dict[str, str]:
    """Return the other settings that determine the weights, by argument name. Equal settings give equal strings."""
    optimizers = [(each, each.build_optimizer(module)) for each in task.by_optimizer().values()]
    return {
        "optimizer": ", ".join(_optimizer(made) for _, made in optimizers),
        "parameter groups": ", ".join(_groups(made, module) for _, made in optimizers),
        "schedule": ", ".join(_schedule(each, made) for each, made in optimizers),
        "clip_norm": NONE if task.clip_norm is None else f"{task.clip_norm:g}",
        "shuffle": str(task.shuffle is not False),
        "sampler": _weights(task.sampler),
        "drop_last": str(task.drop_last),
        "ema": NONE if task.ema is None else f"{task.ema:g}",
        "step": name_of(task.step) or NONE,
        "sync_batch_norm": str(task.sync_batch_norm),
        "turns": ", ".join(task.turns) or NONE,
    }


def layers(module: nn.Module) -> dict[str, str]:
    """Return class and arguments of each module, by its name in the model: {"1": "Dropout(p=0.5, inplace=False)"}."""
    return {name: _layer(each) for name, each in module.named_modules()}


def _layer(module: nn.Module) -> str:
    words = ""
    with contextlib.suppress(Exception):  # user code
        words = _ADDRESS.sub("", str(module.extra_repr()))
    return f"{type(module).__name__}({words})"[:_LONGEST]


def _optimizer(optimizer: Optimizer) -> str:
    options = " ".join(f"{key}={value}" for key, value in _plain(optimizer.defaults).items() if value)
    return f"{type(optimizer).__name__} {options}".strip()


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if isinstance(v, bool | int | float | tuple | list)}


def _groups(optimizer: Optimizer, module: nn.Module) -> str:
    """Describe each group: its parameters, and the options that differ from the optimizer's defaults."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        members = [names.get(id(each), "?") for each in group["params"]]
        options = {k: v for k, v in _plain(group).items() if k != "params" and v != optimizer.defaults.get(k)}
        own = "".join(f" {key}={value}" for key, value in options.items())
        groups.append(f"{len(members)} parameters ({_digest(members)}){own}")
    listed = " + ".join(groups[:_LISTED_GROUPS])
    return listed if len(groups) <= _LISTED_GROUPS else f"{len(groups)} groups ({_digest(groups)})"


def _schedule(task: Task, optimizer: Optimizer) -> str:
    """Return the schedule's class and its learning rates after a few updates; for ReduceLROnPlateau its options."""
    schedule: Any = task.build_schedule(optimizer)
    if schedule is None:
        return NONE
    name = type(schedule).__name__
    if waits_for_metric(schedule):
        return f"{name} {_plain(schedule.state_dict())}"
    rates = _rates(schedule, optimizer)
    first = " ".join(f"{rate[0]:.5g}" for rate in rates)
    several = f" ({_digest([f'{each:.5g}' for rate in rates for each in rate])})" if len(rates[0]) > 1 else ""
    return f"{name} with rates {first}{several}"


def _rates(schedule: Any, optimizer: Optimizer) -> list[list[float]]:
    rates = []
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # a schedule may raise after its end
        warnings.simplefilter("ignore")  # torch expects a step of the optimizer first
        for update in range(_UPDATES[-1] + 1):
            if update in _UPDATES:
                rates.append([float(group["lr"]) for group in optimizer.param_groups])
            schedule.step()
    return rates


def _weights(sampler: Any) -> str:
    import numpy as np

    if sampler is None:
        return NONE
    weights = np.asarray(getattr(sampler, "weights", sampler), dtype=np.float64)
    drawn = getattr(sampler, "num_samples", len(weights))
    return f"{drawn:,} of {len(weights):,} weights ({hashlib.sha256(weights.tobytes()).hexdigest()[:8]})"


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:8]


def changes(before: Mapping[str, str], now: Mapping[str, str], what: str = "") -> list[str]:
    """Return one text for each changed value. Names that only one mapping has are ignored."""
    both = [name for name in before if name in now]
    return [
        f"{what}{name} was {before[name]} and is {now[name]} now"
        for name in both
        if before[name] != now[name]
    ]


def differences(fingerprints: Mapping[str, Sequence[Mapping[str, str]]]) -> list[str]:
    """Return one text for each key with different values among named groups of runs. Missing keys are ignored."""
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
