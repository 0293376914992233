"""Callbacks that log every record to another package: TensorBoard, Weights & Biases, MLflow.

These packages are not dependencies. Each is imported when its callback is created.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError
from paceline.runs.run import Record, Run

if TYPE_CHECKING:
    from paceline.task.task import Task

_FLUSH_S = 5  # interval at which new values become visible


def figures(record: Record) -> dict[str, float]:
    """Return the finite numbers of a record by name."""
    values = {"loss": record.loss, "metric": record.metric, "bytes": record.bytes, **record.extra}
    if record.seconds > 0:
        values["samples_per_s"] = record.samples / record.seconds
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def tensorboard_writer(folder: Path) -> Any:
    """Return PyTorch's writer for TensorBoard."""
    writers: Any = importlib.import_module("torch.utils.tensorboard")
    return writers.SummaryWriter(log_dir=str(folder), flush_secs=_FLUSH_S)


class TensorBoard:
    """Writes every record into a directory, as scalars `run/loss` and so on."""

    def __init__(self, directory: str | Path) -> None:
        _require("TensorBoard", "tensorboard")
        self._directory = Path(directory)
        self._writer: Any = None

    def on_begin(self, task: Task) -> None:
        self._writer = tensorboard_writer(self._directory)

    def on_step(self, record: Record) -> None:
        for name, value in figures(record).items():
            self._writer.add_scalar(f"run/{name}", value, record.step)

    def on_end(self, run: Run | None) -> None:
        self._writer.close()


class WandB:
    """Logs every record to Weights & Biases. Its arguments are passed to `wandb.init`."""

    def __init__(self, **settings: Any) -> None:
        self._wandb = _require("WandB", "wandb")
        self._settings = settings
        self._run: Any = None

    def on_begin(self, task: Task) -> None:
        self._run = self._wandb.init(**self._settings)

    def on_step(self, record: Record) -> None:
        self._run.log(figures(record), step=record.step)

    def on_end(self, run: Run | None) -> None:
        self._run.finish(exit_code=0 if run is not None else 1)


class MLflow:
    """Logs every record to MLflow. Its arguments are passed to `mlflow.start_run`."""

    def __init__(self, **settings: Any) -> None:
        self._mlflow = _require("MLflow", "mlflow")
        self._settings = settings

    def on_begin(self, task: Task) -> None:
        self._mlflow.start_run(**self._settings)

    def on_step(self, record: Record) -> None:
        self._mlflow.log_metrics(figures(record), step=record.step)

    def on_end(self, run: Run | None) -> None:
        self._mlflow.end_run("FINISHED" if run is not None else "FAILED")


def _require(name: str, package: str) -> Any:
    """Import and return the package. TensorBoard is used through PyTorch."""
    if importlib.util.find_spec(package) is None:
        bound = f"need the package {package} for {name}, which is not installed"
        raise ConfigurationError("callbacks", bound, name, f"pip install {package}")
    return importlib.import_module(package)
