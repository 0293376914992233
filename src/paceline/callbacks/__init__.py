"""Callbacks observe a run and may end it: `pl.train(…, callbacks=[…])`.

A callback is any object with one or more of these methods. They are called in the driver, in order. The run waits for
them, and its clock stops meanwhile.

- `on_begin(task)`: before the workers start.
- `on_step(record)`: with the record of every step.
- `on_evaluate(record, state)`: with a record that has a metric. `state` is the state dict of the evaluated model if the
  callback has `wants_state = True`, else None.
- `on_end(run)`: with the run, or with None if it failed.

`on_step` and `on_evaluate` may return `pl.STOP` or raise `pl.StopTraining`. Then the next step is the run's last.
"""

from __future__ import annotations

from paceline.callbacks.calling import STOP, StopTraining
from paceline.callbacks.loggers import MLflow, TensorBoard, WandB
from paceline.callbacks.stopping import EarlyStopping, KeepBest

__all__ = [
    "STOP",
    "EarlyStopping",
    "KeepBest",
    "MLflow",
    "StopTraining",
    "TensorBoard",
    "WandB",
]
