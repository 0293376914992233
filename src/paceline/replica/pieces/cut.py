"""Where a model is cut: which segments there are, and what a rank has and needs of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paceline.context import Segment, Together
from paceline.replica.calls import arguments_of, loss_from, target_of
from paceline.replica.layout import Layout, Within
from paceline.replica.losses import checked_loss
from paceline.replica.pieces.arranged import PARTS
from paceline.replica.pieces.naming import Names
from paceline.replica.pieces.parts import Arguments, Compute, Parts
from paceline.replica.pieces.tensor.spec import Shares
from paceline.task import Task

__all__ = ["Cut"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a model is cut. It holds no parameters: the same cut serves any copy of the model."""

    model: Parts
    bounds: tuple[int, ...]
    """Where each segment begins among the parts, and at the end how many parts there are."""
    segments: tuple[Segment, ...]

    names: Names
    """What its layers are called."""
    shares: Shares | None = None
    """Who of a tensor group has what of each parameter, where they have parts."""
    position: int = 0
    """Whose cut this is in that group."""

    def at(self, position: int) -> Cut:
        """The same cut, as another rank of the tensor group has it."""
        if self.shares is None:
            return self
        return replace(self, model=self.model.at(position), position=position)  # type: ignore[attr-defined]

    def parameters(self, held: Sequence[int]) -> set[str]:
        """The names of what a rank has that holds these segments."""
        names = {name for number in held for name in self.segments[number].parameters}
        return names if self.shares is None else {n for n in names if self.shares.holds(n, self.position)}

    def part(self, name: str, whole: Tensor) -> Tensor:
        """A rank's part of a parameter; the parameter itself, if all have all of it."""
        if self.shares is None or self.shares.of.get(name) is None:
            return whole
        return self.shares.part(name, whole, self.position)

    def write(self, name: str, whole: Tensor, part: Tensor) -> None:
        """Put a rank's part, flat, into a parameter."""
        if self.shares is None:
            whole.copy_(part.view(whole.shape))
        else:
            shape = self.shares.shape(name, whole.shape, self.position)
            self.shares.write(name, whole, part.view(shape), self.position)

    def within(self, layout: Layout) -> dict[str, Within]:
        """Of the parameters of which a rank has a part: which part of the whole one, whose layout is given."""
        found: dict[str, Within] = {}
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            split = None if self.shares is None else self.shares.of.get(name)
            if split is not None and self.shares is not None:
                start, count = split.stretch(self.position, self.shares.size)
                places = (start + block * split.length for block in range(split.blocks))
                found[name] = Within(shape, split.dim, tuple((a, a + count) for a in places))
        return found

    def count(self, name: str, whole: torch.Size) -> int:
        """How many numbers a rank's part of a parameter has."""
        return (whole if self.shares is None else self.shares.shape(name, whole, self.position)).numel()

    def needs_arguments(self, number: int) -> bool:
        """Whether a segment needs what the model is called with."""
        return self.model.needs_arguments(self.bounds[number], self.bounds[number + 1])

    def joined_before(self, number: int) -> tuple[Together, ...]:
        """What ranks make one of at the cut before a segment."""
        return self.segments[number - 1].sums if number else ()

    def shared(self, number: int, stays: Sequence[bool]) -> list[bool]:
        """Of each value that comes to a segment whether its rank has it anyway, given what stays with the segment
        before: what went to another rank, or what ranks made of it, is another value."""
        if not number or self.segments[number - 1].stage != self.segments[number].stage:
            return []
        changed = {each.place for each in self.joined_before(number) if each.how in PARTS}
        return [stay and place not in changed for place, stay in enumerate(stays)]

    def gradients_joined_behind(self, number: int) -> tuple[Together, ...]:
        """The same of the gradients at the cut behind it."""
        return self.segments[number + 1].gradient_sums if number + 1 < len(self.segments) else ()

    @property
    def size(self) -> int:
        """Of the tensor group."""
        return 1 if self.shares is None else self.shares.size

    @property
    def has_loss(self) -> bool:
        """Whether the last segment gives the loss, and not the model's outputs."""
        return getattr(self.model, "has_loss", False)

    def arguments(self, task: Task, module: nn.Module, content: Any) -> Arguments:
        """What segments need of a micro-batch."""
        called = arguments_of(task, module, content)
        return Arguments(*called, target_of(content) if self.has_loss else None)

    def loss_of(self, task: Task, content: Any) -> Callable[[Any], Tensor]:
        """Gives the loss of what the last segment makes of a micro-batch."""
        return checked_loss if self.has_loss else lambda made: loss_from(task, made, content)

    def compute(self, module: nn.Module, number: int) -> Compute:
        """A segment as a function, with the parameters of `module`."""
        return self.model.compute(module, self.bounds[number], self.bounds[number + 1])
