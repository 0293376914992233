"""PipeDream: each batch is one micro-batch, and each stage stores one version of its weights per batch in flight.

A stage updates after every backward pass. The backward pass of a batch uses the weights of its forward pass (weight
stashing), which the updates in between have replaced. Different stages use versions of different age.

Cost, p equal stages: F + B + W a step, no bubble in the steady state. Stage s, from 0: p - s versions of the weights,
activations of p - s batches, gradients that are p - 1 - s updates old.
Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019 (arXiv 1806.03377).
"""

from __future__ import annotations

from paceline.schedules.pipeline.continuous import ContinuousOrder


def _staleness(rank: int, stages: int) -> int:
    return stages - 1 - rank


def _versions(rank: int, stages: int) -> int:
    return stages - rank


PIPEDREAM = ContinuousOrder(staleness=_staleness, versions=_versions, whole_batches=True)
