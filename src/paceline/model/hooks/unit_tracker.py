"""Which units a computation uses at each moment, and which gradients are complete."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from paceline.context.passes import UnitEvent
from paceline.errors import RunError

Park = Callable[[UnitEvent], None]
"""Pass an event to the program, and wait until the program has handled it."""

_NO_BACKWARD = -1  # the number that autograd returns outside of a backward pass


class UnitTracker:
    """Units in use by one rank. Hooks call it. It pauses the computation if a unit must be gathered.

    In a forward pass, a unit stays in use until the block that first used it returns. In a backward pass, it is in use
    by one operation of autograd.
    """

    def __init__(self, units: Sequence[int], sizes: Sequence[int], *, frees_parameters: bool) -> None:
        """`units` are the numbers of all units, for events. Hooks use their places in this list.

        `sizes` are the numbers of their trained parameters.
        """
        self._numbers = list(units)
        self._sizes = list(sizes)
        self.frees_parameters = frees_parameters
        self._park: Park | None = None
        self.keeps_all = False
        """Whether units stay from their first use to the end of the micro-batch."""
        self._expected = _in_order([place for place, size in enumerate(sizes) if size])
        """For each event of the last micro-batch, the units that it was the first to need. In the first micro-
        batch: the registration order."""
        # Units with gradients from a nested backward pass: complete at the end only.
        self._late: set[int] = set()
        self._reset()

    def _reset(self) -> None:
        self._frames: list[set[int]] = [set()]  # of the blocks being called, the outermost first
        self._retained: set[int] = set()
        self._node: Any = None  # the autograd operation that is running
        self._of_node: set[int] = set()
        self._here: frozenset[int] = frozenset()
        self._seen: list[frozenset[int]] = []
        self._place = 0
        self._is_backward = False
        self._outer_task = _NO_BACKWARD
        self._missing = list(self._sizes)
        self._pending: list[int] = []
        self._complete: set[int] = set()

    # A micro-batch

    def begin(self, park: Park) -> None:
        self._reset()
        self._park = park

    def begin_backward(self) -> None:
        self._is_backward = True
        self._frames = []

    def note_backward(self) -> None:
        """Note the outermost backward pass. Called by a hook of the loss."""
        self._outer_task = torch._C._current_graph_task_id()

    def begin_again(self) -> None:
        """Forget the blocks of a forward pass that failed."""
        self._frames = [set()]

    def end(self) -> None:
        """Report the end of the micro-batch: all gradients are complete."""
        assert self._park is not None
        park, self._park = self._park, None
        self._expected, self._node = self._seen, None
        rest = [unit for unit in reversed(range(len(self._numbers))) if unit not in self._complete]
        completed = self._numbers_of([*self._pending, *rest])
        park(UnitEvent(completed=completed, is_backward=True, is_last=True))

    def abandon(self) -> None:
        """Reset after a computation that did not end."""
        self._park = None
        self._reset()

    # Called by hooks

    @property
    def is_active(self) -> bool:
        """Whether a pass is under way. Hooks do nothing otherwise, for example in an evaluation."""
        return self._park is not None

    def enter(self, units: Collection[int]) -> None:
        """Begin a call of a block."""
        if self._park is not None:
            self._frames.append(set())
            self.use(units)

    def leave(self) -> None:
        """End a call of a block."""
        if self._park is not None and self._frames:
            self._frames.pop()

    def use(self, units: Collection[int]) -> None:
        """Use units in a forward pass, until the current block returns."""
        if self._park is None or not self.frees_parameters:
            return
        if torch._C._current_graph_task_id() != _NO_BACKWARD:
            # In a recomputation within a backward pass, later operations of the block may not announce their use.
            self._retained.update(units)
        if self._frames:
            self._frames[-1].update(units)
        self._declare(units)

    def use_in_backward(self, units: Collection[int]) -> None:
        """Use units in the current operation of a backward pass."""
        if self._park is None or not self.frees_parameters:
            return
        node = torch._C._current_autograd_node()
        if node is not self._node:
            self._node, self._of_node = node, set()
        self._of_node.update(units)
        self._declare(units)

    def take_gradient(self, unit: int) -> None:
        """Note that a parameter of a unit has its gradient."""
        if unit in self._complete:
            raise RunError(
                "a gradient arrived after its unit was reduced: a parameter is used both inside and outside of a "
                "checkpoint with use_reentrant=True. Use torch.utils.checkpoint with use_reentrant=False"
            )
        if torch._C._current_graph_task_id() != self._outer_task:
            self._late.add(unit)  # a nested backward pass, which another one may follow
        self._missing[unit] -= 1
        if self._missing[unit] or unit in self._late:
            return
        self._complete.add(unit)
        self._retained.discard(unit)
        self._pending.append(unit)
        if not self.frees_parameters:
            self._report(self._here)

    # Events

    def _declare(self, units: Collection[int]) -> None:
        if not self._here.issuperset(units):
            self._report(self._in_use().union(units))

    def _in_use(self) -> frozenset[int]:
        if self.keeps_all:
            return self._here
        return frozenset(self._retained.union(self._of_node, *self._frames))

    def _report(self, needed: frozenset[int]) -> None:
        assert self._park is not None
        following = self._next_expected(needed - self._here) - needed
        self._here = needed
        completed, self._pending = self._pending, []
        of = self._numbers_of
        self._park(UnitEvent(of(sorted(needed)), of(sorted(following)), of(completed), self._is_backward))

    def _numbers_of(self, places: Sequence[int]) -> list[int]:
        return [self._numbers[place] for place in places]

    def _next_expected(self, new: frozenset[int]) -> frozenset[int]:
        """Return the units that the next event will probably need. `new` are the units of the current event."""
        if not new:
            return frozenset()
        self._seen.append(new)
        try:
            self._place = self._expected.index(new, self._place) + 1
        except ValueError:
            return frozenset()
        following = self._expected[self._place : self._place + 1]
        return following[0] if following else frozenset()


def _in_order(units: Sequence[int]) -> list[frozenset[int]]:
    """Return the expected events of a model that calls its blocks in the order of registration."""
    return [frozenset((unit,)) for unit in (*units, *reversed(units[:-1]))]
