"""1F1B: each backward pass runs as soon as possible. Then forward and backward passes alternate.

It takes as long as GPipe, but a stage stores at most as many activations as there are stages from this stage to the
last.

Cost, p equal stages, m micro-batches: (m + p - 1)(F + B + W); min(m, p - i) activations at stage i, from 0.
Source: Narayanan et al., "PipeDream", SOSP 2019 (arXiv 1806.03377), with one flush a batch (PipeDream-Flush,
arXiv 2006.09503).
"""

from __future__ import annotations

from paceline.schedules.pipeline.actions import Action, Actions, Phase
from paceline.schedules.pipeline.turns import in_turns


def actions(rank: int, stages: int, microbatches: int, chunks: int = 1) -> Actions:
    forwards = [Action(Phase.FORWARD, micro) for micro in range(microbatches)]
    backwards = [Action(Phase.BACKWARD, micro) for micro in range(microbatches)]
    return in_turns(forwards, backwards, first=stages - 1 - rank)
