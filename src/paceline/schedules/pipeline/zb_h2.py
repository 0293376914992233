"""ZB-H2: twice as many initial forwards as ZB-H1, so that ranks rarely wait. It stores twice as many activations.

Cost, p equal stages: m (F + B + W) + (p - 1)(F + B - 2W), if m is at least 2p - 1; 2p - 1 activations at every stage.
Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv 2401.10241).
"""

from __future__ import annotations

from paceline.schedules.pipeline.actions import Action, Actions, Phase
from paceline.schedules.pipeline.turns import in_turns, weights_later


def actions(rank: int, stages: int, microbatches: int, chunks: int = 1) -> Actions:
    forwards = [Action(Phase.FORWARD, micro) for micro in range(microbatches)]
    backwards = [Action(Phase.BACKWARD, micro) for micro in range(microbatches)]
    return weights_later(in_turns(forwards, backwards, first=2 * (stages - 1 - rank)), lag=2 * rank)
