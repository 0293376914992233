"""The actions of a pipeline order.

A pipeline of p ranks cuts its model into p x chunks stages. Stage k is chunk k // p of rank k % p. With one chunk a
rank has one stage; with several chunks a micro-batch passes through the rank several times. An order is the list of
actions of each rank. The action determines the receiver of its message: outputs of a forward pass go to the next stage,
gradients of a backward pass's inputs to the previous stage.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Phase(Enum):
    """The work on one micro-batch in one stage."""

    FORWARD = "F"
    INPUTS = "B"
    """Backward pass for the inputs only. The previous stage waits for it."""
    WEIGHTS = "W"
    """Backward pass for the weights only. No stage waits for it."""
    BACKWARD = "BW"
    """Backward pass for inputs and weights."""

    @property
    def gives_inputs(self) -> bool:
        """Whether it computes the gradients of the inputs."""
        return self is Phase.INPUTS or self is Phase.BACKWARD

    @property
    def gives_weights(self) -> bool:
        """Whether it computes the gradients of the weights. The activations are not needed afterwards."""
        return self is Phase.WEIGHTS or self is Phase.BACKWARD


class Action(NamedTuple):
    """One phase of one micro-batch, in one of a rank's chunks."""

    phase: Phase
    micro: int
    chunk: int = 0

    def __str__(self) -> str:
        chunk = f".{self.chunk}" if self.chunk else ""
        return f"{self.phase.value}{self.micro}{chunk}"


Actions = tuple[Action, ...]
"""The actions of one rank, in order."""

Order = tuple[Actions, ...]
"""The actions of every rank."""


def stage_of(rank: int, chunk: int, ranks: int) -> int:
    return chunk * ranks + rank
