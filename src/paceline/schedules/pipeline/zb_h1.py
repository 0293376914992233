"""ZB-H1: 1F1B with delayed weight gradients, so that stages wait less and store no more activations.

A backward pass is split into two parts: the gradients of the inputs, for which the previous stage waits, and the weight
gradients, which can be computed any time later. The lag of the weight gradients grows from stage to stage, and fills
the idle time at the end.

Cost, p equal stages: m (F + B + W) + (p - 1)(F + B - W); p activations at every stage.
Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv 2401.10241).
"""

from __future__ import annotations

from paceline.schedules.pipeline import one_f_one_b
from paceline.schedules.pipeline.actions import Actions
from paceline.schedules.pipeline.turns import weights_later


def actions(rank: int, stages: int, microbatches: int, chunks: int = 1) -> Actions:
    return weights_later(one_f_one_b.actions(rank, stages, microbatches), lag=rank)
