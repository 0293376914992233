"""Paceline trains one PyTorch model on many workers, with a parallel-training strategy chosen by name.

The names below are public and stable. They are imported on first use, so that `import paceline` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline import callbacks, codecs, collectives, faults, models, optim
    from paceline.analysis.comparison.compare import compare
    from paceline.analysis.comparison.comparison import Comparison
    from paceline.analysis.comparison.proof import Proof
    from paceline.callbacks.calling import STOP, StopTraining
    from paceline.clusters.launched.launched import Launched
    from paceline.clusters.local.local import Local
    from paceline.clusters.ray.ray import Ray
    from paceline.clusters.simulated.simulated import Simulated
    from paceline.clusters.spark.spark import Spark
    from paceline.costs import Link, devices, times
    from paceline.costs.calibration import Calibration
    from paceline.costs.description import ClusterDescription
    from paceline.costs.description_files import load_cluster
    from paceline.errors import PacelineError
    from paceline.loop.prepare import (
        finish,
        gather,
        is_main,
        log,
        prepare,
        print,
        rank,
        resume,
        save,
        shard,
        workers,
    )
    from paceline.planner.calibrate import calibrate
    from paceline.planner.plan import Plan
    from paceline.planner.planning import plan
    from paceline.planner.predict import predict
    from paceline.planner.prediction import Prediction
    from paceline.programs import run_program
    from paceline.runs.run import Run
    from paceline.strategies import register
    from paceline.task.files import load_task
    from paceline.task.task import Task
    from paceline.training import train

__version__ = "0.2.0"
__all__ = [
    "STOP",
    "Calibration",
    "ClusterDescription",
    "Comparison",
    "Launched",
    "Link",
    "Local",
    "PacelineError",
    "Plan",
    "Prediction",
    "Proof",
    "Ray",
    "Run",
    "Simulated",
    "Spark",
    "StopTraining",
    "Task",
    "calibrate",
    "callbacks",
    "codecs",
    "collectives",
    "compare",
    "devices",
    "faults",
    "finish",
    "gather",
    "is_main",
    "load_cluster",
    "load_task",
    "log",
    "models",
    "optim",
    "plan",
    "predict",
    "prepare",
    "print",
    "rank",
    "register",
    "resume",
    "run_program",
    "save",
    "shard",
    "times",
    "train",
    "workers",
]

_HOMES = {
    "STOP": "paceline.callbacks.calling",
    "Calibration": "paceline.costs.calibration",
    "ClusterDescription": "paceline.costs.description",
    "Comparison": "paceline.analysis.comparison.comparison",
    "Launched": "paceline.clusters.launched.launched",
    "Link": "paceline.costs",
    "Local": "paceline.clusters.local.local",
    "PacelineError": "paceline.errors",
    "Plan": "paceline.planner.plan",
    "Prediction": "paceline.planner.prediction",
    "Proof": "paceline.analysis.comparison.proof",
    "Ray": "paceline.clusters.ray.ray",
    "Run": "paceline.runs.run",
    "Simulated": "paceline.clusters.simulated.simulated",
    "Spark": "paceline.clusters.spark.spark",
    "StopTraining": "paceline.callbacks.calling",
    "Task": "paceline.task.task",
    "calibrate": "paceline.planner.calibrate",
    "compare": "paceline.analysis.comparison.compare",
    "devices": "paceline.costs",
    "finish": "paceline.loop.prepare",
    "gather": "paceline.loop.prepare",
    "is_main": "paceline.loop.prepare",
    "load_cluster": "paceline.costs.description_files",
    "load_task": "paceline.task.files",
    "log": "paceline.loop.prepare",
    "plan": "paceline.planner.planning",
    "predict": "paceline.planner.predict",
    "prepare": "paceline.loop.prepare",
    "print": "paceline.loop.prepare",
    "rank": "paceline.loop.prepare",
    "register": "paceline.strategies",
    "resume": "paceline.loop.prepare",
    "run_program": "paceline.programs",
    "save": "paceline.loop.prepare",
    "shard": "paceline.loop.prepare",
    "times": "paceline.costs",
    "train": "paceline.training",
    "workers": "paceline.loop.prepare",
}


def __getattr__(name: str) -> Any:
    if name in ("callbacks", "codecs", "collectives", "faults", "models", "optim"):
        return importlib.import_module(f"paceline.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
