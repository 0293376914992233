"""`torch.autocast` around `pl.train`: the caller's settings, passed to every rank.

Autocast is a setting of one thread, so other processes and threads do not inherit it. It applies to the model, the loss
and evaluation. It does not apply to updates or to computations of a strategy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from paceline.errors import ConfigurationError

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Autocast:
    """Autocast setting of one device type."""

    device: str
    dtype: torch.dtype
    cache: bool
    """Whether parameters are cast once per forward pass."""

    def __str__(self) -> str:
        return f"{self.device} {str(self.dtype).removeprefix('torch.')}"


def in_force() -> tuple[Autocast, ...]:
    """Return the caller's settings, one for each device type with autocast enabled."""
    accelerator = torch.accelerator.current_accelerator()
    devices = ["cpu", *([accelerator.type] if accelerator is not None else [])]
    cache = torch.is_autocast_cache_enabled()
    enabled = (device for device in devices if torch.is_autocast_enabled(device))
    return tuple(Autocast(device, torch.get_autocast_dtype(device), cache) for device in enabled)


def of_precision(precision: str, module: nn.Module) -> tuple[Autocast, ...]:
    """Return the settings for a task's precision, on the processor and on the accelerator.

    With "fp32" they are the caller's.
    """
    callers = in_force()
    if precision == "fp32":
        return callers
    if callers:
        remedy = "remove torch.autocast, or omit precision"
        raise ConfigurationError("precision", "must not be given under torch.autocast", precision, remedy)
    dtypes = {each.dtype for each in module.parameters() if each.requires_grad}
    if dtypes - {torch.float32}:
        names = ", ".join(sorted(map(str, dtypes)))
        remedy = "give a model in float32: the master copy of its parameters"
        raise ConfigurationError("precision", f"must be fp32 for a model of {names}", precision, remedy)
    accelerator = torch.accelerator.current_accelerator()
    devices = ["cpu", *([accelerator.type] if accelerator is not None else [])]
    return tuple(Autocast(device, _DTYPES[precision], cache=True) for device in devices)


@contextmanager
def suspended() -> Iterator[None]:
    """Disable autocast until `computing` enables it. The caller's process then behaves like the other processes."""
    with ExitStack() as stack:
        for setting in in_force():
            stack.enter_context(torch.autocast(setting.device, enabled=False))
        yield


def computing(settings: Sequence[Autocast]) -> AbstractContextManager[None]:
    """Return a context for one forward pass or one evaluation under these settings."""
    return _under(settings) if settings else nullcontext()


@contextmanager
def _under(settings: Sequence[Autocast]) -> Iterator[None]:
    try:
        with ExitStack() as stack:
            for each in settings:
                stack.enter_context(torch.autocast(each.device, each.dtype, cache_enabled=each.cache))
            yield
    finally:
        # Torch clears its cache only at the end of the outermost autocast, which may be around the whole run.
        # Without clearing, the next pass would use the parameters from before the update.
        torch.clear_autocast_cache()
