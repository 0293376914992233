"""A cut of a model: its segments, and the parameters and inputs of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paceline.context import GroupReduction, Segment
from paceline.model.cutting.naming import Names
from paceline.model.cutting.parts import Arguments, Compute, Parts
from paceline.model.layout import Within
from paceline.model.stages.arranged import PARTS
from paceline.model.tensor_parallel.spec import Shares
from paceline.task.calls import arguments_of, loss_from, target_of
from paceline.task.losses import checked_loss
from paceline.task.task import Task


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut of a model. It stores no parameters, so it applies to any copy of the model."""

    model: Parts
    bounds: tuple[int, ...]
    """Number of the first part of each segment, followed by the number of parts."""
    segments: tuple[Segment, ...]

    names: Names
    """Layer names."""
    shares: Shares | None = None
    """Assignment of parameters to the ranks of the tensor group. None without a tensor group."""
    position: int = 0
    """Position of this rank in the tensor group."""

    def at(self, position: int) -> Cut:
        """Return the same cut for another rank of the tensor group."""
        if self.shares is None:
            return self
        return replace(self, model=self.model.at(position), position=position)  # type: ignore[attr-defined]

    def parameters(self, held: Sequence[int]) -> set[str]:
        """Return the names of the parameters that a rank stores if it holds these segments."""
        names = {name for number in held for name in self.segments[number].parameters}
        return names if self.shares is None else {n for n in names if self.shares.holds(n, self.position)}

    def part(self, name: str, whole: Tensor) -> Tensor:
        """Return this rank's part of a parameter; the parameter itself if it is not split."""
        if self.shares is None or self.shares.of.get(name) is None:
            return whole
        return self.shares.part(name, whole, self.position)

    def write(self, name: str, whole: Tensor, part: Tensor) -> None:
        """Copy this rank's part, flat, into the whole parameter."""
        if self.shares is None:
            whole.copy_(part.view(whole.shape))
        else:
            shape = self.shares.shape(name, whole.shape, self.position)
            self.shares.write(name, whole, part.view(shape), self.position)

    def within(self, whole: Iterable[tuple[str, torch.Size]]) -> dict[str, Within]:
        """Return, for each split parameter, the part of it that this rank stores. `whole` has the names and shapes of
        the whole parameters.
        """
        found: dict[str, Within] = {}
        for name, shape in whole:
            split = None if self.shares is None else self.shares.of.get(name)
            if split is not None and self.shares is not None:
                start, count = split.stretch(self.position, self.shares.size)
                places = (start + block * split.length for block in range(split.blocks))
                found[name] = Within(shape, split.dim, tuple((a, a + count) for a in places))
        return found

    def count(self, name: str, whole: torch.Size) -> int:
        """Return the number of elements in this rank's part of a parameter."""
        return (whole if self.shares is None else self.shares.shape(name, whole, self.position)).numel()

    def needs_arguments(self, number: int) -> bool:
        """Return whether a segment needs the model's arguments."""
        return self.model.needs_arguments(self.bounds[number], self.bounds[number + 1])

    def reductions_before(self, number: int) -> tuple[GroupReduction, ...]:
        """Return the reductions of the tensor group at the cut before a segment."""
        return self.segments[number - 1].reductions if number else ()

    def shared(self, number: int, stays: Sequence[bool]) -> list[bool]:
        """Return, for each input of a segment, whether its rank already stores the value. `stays` lists the outputs
        that the previous segment stores. A value that was sent to another rank or reduced is a different tensor.
        """
        if not number or self.segments[number - 1].stage != self.segments[number].stage:
            return []
        changed = {each.place for each in self.reductions_before(number) if each.how in PARTS}
        return [stay and place not in changed for place, stay in enumerate(stays)]

    def gradient_reductions_after(self, number: int) -> tuple[GroupReduction, ...]:
        """Return the reductions of gradients at the cut after a segment."""
        return self.segments[number + 1].gradient_reductions if number + 1 < len(self.segments) else ()

    @property
    def size(self) -> int:
        """Number of ranks in the tensor group."""
        return 1 if self.shares is None else self.shares.size

    @property
    def has_loss(self) -> bool:
        """Whether the last segment returns the loss instead of the model's outputs."""
        return getattr(self.model, "has_loss", False)

    def arguments(self, task: Task, module: nn.Module, content: Any) -> Arguments:
        """Return the arguments of the model for a micro-batch."""
        called = arguments_of(task, module, content)
        return Arguments(*called, target_of(content) if self.has_loss else None)

    def loss_of(self, task: Task, content: Any) -> Callable[[Any], Tensor]:
        """Return a function that computes the loss from the output of the last segment."""
        return checked_loss if self.has_loss else lambda made: loss_from(task, made, content)

    def compute(self, module: nn.Module, number: int) -> Compute:
        """Return a segment as a function that uses the parameters of `module`."""
        return self.model.compute(module, self.bounds[number], self.bounds[number + 1])
