"""GPipe: all micro-batches forward, then all of them backward.

The simplest order. It stores the activations of every micro-batch until the first backward pass starts.

Cost, p equal stages, m micro-batches: (m + p - 1)(F + B + W); m activations a stage.
Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019
(arXiv 1811.06965).
"""

from __future__ import annotations

from paceline.schedules.pipeline.actions import Action, Actions, Phase


def actions(rank: int, stages: int, microbatches: int, chunks: int = 1) -> Actions:
    every = range(microbatches)
    forwards = (Action(Phase.FORWARD, micro) for micro in every)
    backwards = (Action(Phase.BACKWARD, micro) for micro in every)
    return (*forwards, *backwards)
