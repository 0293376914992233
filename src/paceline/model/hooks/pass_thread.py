"""The passes of one batch in a thread that alternates with the program: see `Baton`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Generic, TypeVar

import torch

from paceline.system.baton import Baton
from paceline.system.seeding import RngLease

E = TypeVar("E")


class PassThread(Generic[E]):
    """Passes that park with an event whenever the program must act before they continue."""

    def __init__(
        self, work: Callable[[Callable[[E], None]], Iterator[float]], *, eager: bool = False
    ) -> None:
        """`work` takes the function that parks. It yields the loss of each micro-batch.

        With `eager`, compiled modules are not compiled: their hooks would be compiled with them.
        """
        self._work = work
        self._is_eager = eager
        self.losses: list[float] = []
        """Loss of each micro-batch computed so far, without empty ones."""
        self._rng = RngLease()
        self._grad_mode = torch.is_grad_enabled()
        device = torch.get_default_device()
        # A device as a context makes every call of torch slower.
        self._device_mode = nullcontext() if device.type == "cpu" else device
        self._baton: Baton[E] = Baton(self._compute, name="hooks")

    @property
    def processor_s(self) -> float:
        """Processor time of the computation so far."""
        return self._baton.processor_s

    def advance(self) -> E | None:
        """Compute until the next event. Return None at the end of the batch."""
        return self._baton.resume()

    def close(self) -> None:
        """End the thread, even in the middle of the batch."""
        self._baton.close()

    def _compute(self) -> None:
        # The import of the compiler takes seconds.
        eager = torch.compiler.set_stance("force_eager") if self._is_eager else nullcontext()
        # These settings belong to a thread.
        with torch.set_grad_enabled(self._grad_mode), self._device_mode, eager:
            self._rng.take()
            try:
                for loss in self._work(self._park):
                    self.losses.append(loss)
            finally:
                self._rng.end()

    def _park(self, event: E) -> None:
        self._baton.park(event)
        self._rng.take()
