"""Paceline trains one PyTorch model on many workers, with any parallel-training strategy, chosen by one word.

The names below are public and stable. They are resolved when first used, so that `import paceline` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline import callbacks, collectives, faults, models
    from paceline.callbacks.calling import STOP, StopTraining
    from paceline.clusters.launched.launched import Launched
    from paceline.clusters.local.local import Local
    from paceline.clusters.ray.ray import Ray
    from paceline.clusters.simulated.simulated import Simulated
    from paceline.comparison.compare import compare
    from paceline.comparison.comparison import Comparison
    from paceline.comparison.proof import Proof
    from paceline.costs import Link, devices, times
    from paceline.errors import PacelineError
    from paceline.programs import run_program
    from paceline.run import Run
    from paceline.strategies import register
    from paceline.task import Task
    from paceline.task_files import load_task
    from paceline.training import train

__version__ = "0.2.0"
__all__ = [
    "STOP",
    "Comparison",
    "Launched",
    "Link",
    "Local",
    "PacelineError",
    "Proof",
    "Ray",
    "Run",
    "Simulated",
    "StopTraining",
    "Task",
    "callbacks",
    "collectives",
    "compare",
    "devices",
    "faults",
    "load_task",
    "models",
    "register",
    "run_program",
    "times",
    "train",
]

_HOMES = {
    "STOP": "paceline.callbacks.calling",
    "Comparison": "paceline.comparison.comparison",
    "Launched": "paceline.clusters.launched.launched",
    "Link": "paceline.costs",
    "Local": "paceline.clusters.local.local",
    "PacelineError": "paceline.errors",
    "Proof": "paceline.comparison.proof",
    "Ray": "paceline.clusters.ray.ray",
    "Run": "paceline.run",
    "Simulated": "paceline.clusters.simulated.simulated",
    "StopTraining": "paceline.callbacks.calling",
    "Task": "paceline.task",
    "compare": "paceline.comparison.compare",
    "devices": "paceline.costs",
    "load_task": "paceline.task_files",
    "register": "paceline.strategies",
    "run_program": "paceline.programs",
    "times": "paceline.costs",
    "train": "paceline.training",
}


def __getattr__(name: str) -> Any:
    if name in ("callbacks", "collectives", "faults", "models"):
        return importlib.import_module(f"paceline.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
