"""Interleaved 1F1B: a rank has several chunks of the model, and a micro-batch passes through it once for each.

A chunk is shorter than a stage, so ranks wait less at the start and the end of a step. In return, each micro-batch
is sent once for each chunk. Micro-batches are in groups of about p. A group passes through a rank's first chunk,
then its second, and so on.

Cost, p ranks, v chunks each: ratio of bubble to ideal time (p - 1)/(v m), if p divides m; v times the messages of 1F1B.
Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021
(arXiv 2104.04473). Groups of a size other than p follow PyTorch's ScheduleInterleaved1F1B.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from paceline.schedules.collectives.steps import chunk_bounds
from paceline.schedules.pipeline.actions import Action, Actions, Phase
from paceline.schedules.pipeline.turns import in_turns


def actions(rank: int, stages: int, microbatches: int, chunks: int) -> Actions:
    groups = _groups(stages, microbatches)
    forwards = _all(Phase.FORWARD, groups, range(chunks))
    backwards = _all(Phase.BACKWARD, groups, range(chunks - 1, -1, -1))
    # The first group must reach the last chunk before any backward pass can start.
    first = (chunks - 1) * len(groups[0]) + 2 * (stages - 1 - rank)
    return in_turns(forwards, backwards, first)


def _groups(stages: int, microbatches: int) -> list[range]:
    """Return the sizes of the groups: as many groups of at least p as possible, nearly equal, the larger ones
    first."""
    bounds = chunk_bounds(microbatches, max(1, microbatches // stages))
    return [range(a, b) for a, b in pairwise(bounds)]


def _all(phase: Phase, groups: Sequence[range], chunks: Sequence[int]) -> list[Action]:
    return [Action(phase, micro, chunk) for group in groups for chunk in chunks for micro in group]
