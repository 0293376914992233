"""`torch.autocast` around `pl.train`: the caller's setting, carried to wherever the model is computed.

It belongs to a thread, so a process or a thread that computes for the caller does not have it by itself. It holds for
the model and the loss, and for evaluation; not for updates, nor for what a strategy computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import torch

__all__ = ["Autocast", "computing", "in_force", "suspended"]


@dataclass(frozen=True, slots=True)
class Autocast:
    """The setting of one kind of device."""

    device: str
    dtype: torch.dtype
    cache: bool
    """Whether parameters are cast once a forward pass, however often they are used in it."""

    def __str__(self) -> str:
        return f"{self.device} {str(self.dtype).removeprefix('torch.')}"


def in_force() -> tuple[Autocast, ...]:
    """The caller's settings, one for each kind of device that has it."""
    accelerator = torch.accelerator.current_accelerator()
    devices = ["cpu", *([accelerator.type] if accelerator is not None else [])]
    cache = torch.is_autocast_cache_enabled()
    enabled = (device for device in devices if torch.is_autocast_enabled(device))
    return tuple(Autocast(device, torch.get_autocast_dtype(device), cache) for device in enabled)


@contextmanager
def suspended() -> Iterator[None]:
    """Without it, until `computing` asks for it: so that a caller's own process does as others do."""
    with ExitStack() as stack:
        for setting in in_force():
            stack.enter_context(torch.autocast(setting.device, enabled=False))
        yield


def computing(settings: Sequence[Autocast]) -> AbstractContextManager[None]:
    """One forward pass, or one evaluation, under these settings."""
    return _under(settings) if settings else nullcontext()


@contextmanager
def _under(settings: Sequence[Autocast]) -> Iterator[None]:
    try:
        with ExitStack() as stack:
            for each in settings:
                stack.enter_context(torch.autocast(each.device, each.dtype, cache_enabled=each.cache))
            yield
    finally:
        # Torch does so at the end of the outermost autocast only, and that may be around the whole run: then the next
        # pass would use the parameters as they were before the update.
        torch.clear_autocast_cache()
