"""ZB-H1: 1F1B with the gradient of the weights put off, so that stages wait less and keep no more.

A backward is parted: the gradient of the inputs, for which the stage before waits, and that of the weights, which can
be made at any time later. The weights' lag grows from stage to stage, and fills what was idle at the end.

Cost, p equal stages: m (F + B + W) + (p - 1)(F + B - W); p activations at every stage.
Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv 2401.10241).
"""

from __future__ import annotations

from paceline.schedules.pipeline import one_f_one_b
from paceline.schedules.pipeline.actions import Actions
from paceline.schedules.pipeline.turns import weights_later

__all__ = ["actions"]


def actions(rank: int, stages: int, microbatches: int, chunks: int = 1) -> Actions:
    return weights_later(one_f_one_b.actions(rank, stages, microbatches), lag=rank)
