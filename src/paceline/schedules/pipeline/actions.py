"""The words that an order is written in.

A pipeline of p ranks cuts its model into p x chunks stages. Stage k is chunk k // p of rank k % p: so with one
chunk a rank has one stage, and with several a micro-batch comes round to it several times. An order is the list of
actions of each rank. A message goes where its action says: the outputs of a forward to the stage after, the
gradients of a backward's inputs to the stage before.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["Action", "Actions", "Order", "Phase", "stage_of"]


class Phase(Enum):
    """What is done with one micro-batch in one stage."""

    FORWARD = "F"
    INPUTS = "B"
    """The gradient of the inputs alone: the stage before waits for it."""
    WEIGHTS = "W"
    """The gradient of the weights alone: nobody waits for it."""
    BACKWARD = "BW"
    """Both in one."""

    @property
    def gives_inputs(self) -> bool:
        """Whether it makes the gradient of the inputs."""
        return self is Phase.INPUTS or self is Phase.BACKWARD

    @property
    def gives_weights(self) -> bool:
        """Whether it makes the gradient of the weights: after it the activations are not needed any more."""
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
"""What one rank does, in this order."""

Order = tuple[Actions, ...]
"""The actions of every rank."""


def stage_of(rank: int, chunk: int, ranks: int) -> int:
    return chunk * ranks + rank
