"""Devices: which one a rank has, and how values get there and back.

The model of a rank and its batches are on its device. Links move the memory of the processor, so that what is to be
sent is copied there first, and what has come is copied from there: into pinned memory, where the device can read that.
Nothing here names a maker: `torch.accelerator` knows what there is.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import ConfigurationError
from paceline.task import Task

__all__ = [
    "CPU",
    "Accelerator",
    "check_device",
    "device_of",
    "enter",
    "host_copy",
    "host_empty",
    "move_module",
    "moved",
    "synchronize",
    "with_loss_on",
]

CPU = torch.device("cpu")
_PASSIVE = ("cpu", "meta")  # what works in step with the program, or not at all


def check_device(word: str) -> None:
    """Refuse a device that is not here."""
    device_of(word, 0)


def device_of(word: str, place: int) -> torch.device:
    """The device of a rank; `place` counts the ranks of its host. "gpu" is the accelerator, whatever its make."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if word == "cpu" or (word == "auto" and found is None):
        return CPU
    if found is None or word not in ("auto", "gpu", found.type):
        here = 'must be "cpu" or "auto": torch finds no accelerator here'
        bound = here if found is None else f'must be "cpu", "auto", "gpu" or "{found.type}"'
        remedy = "ranks are given the devices of their host in turn, so it has no number"
        if found is None:
            remedy = (
                "install the build of torch for your device; a backend of its own has to be imported first"
            )
        raise ConfigurationError("device", bound, word, remedy)
    return torch.device(found.type, place % torch.accelerator.device_count())


def enter(device: torch.device) -> None:
    """Let what this thread makes without naming a device's number be made on this one."""
    if device.type not in _PASSIVE:
        torch.accelerator.set_device_index(device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was told: it works while the program goes on."""
    if device.type not in _PASSIVE:
        torch.accelerator.synchronize(device)


class Accelerator:
    """The device of a replica, if it works beside the program: what it is told, and what it takes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._first, self._last = (torch.Event(device=device, enable_timing=True) for _ in range(2))

    @classmethod
    def of(cls, device: torch.device) -> Accelerator | None:
        """None: the processor, or no device at all."""
        return None if device.type in _PASSIVE else cls(device)

    def begin(self) -> None:
        """Work begins, in this thread."""
        enter(self._device)
        self._first.record()

    def end(self) -> float:
        """Wait until the device has done the work; its seconds, by the events in its own queue."""
        self._last.record()
        self._last.synchronize()
        return self._first.elapsed_time(self._last) / 1000

    def seed(self, seed: int) -> None:
        """Set what is drawn there next, such as dropout."""
        torch.get_device_module(self._device).manual_seed(seed)

    def take(self, batch: Any) -> Any:
        """A batch on the device."""
        return _moved(batch, self._device)


def moved(values: Any, device: torch.device) -> Any:
    """A batch on a device: tensors, and lists, tuples and dictionaries of them, however nested."""
    return values if device.type in _PASSIVE else _moved(values, device)


def _moved(values: Any, device: torch.device) -> Any:
    if hasattr(values, "to"):  # a tensor, or a batch that knows how, such as a packed sequence
        return values.to(device)
    if isinstance(values, Mapping):
        there = {key: _moved(value, device) for key, value in values.items()}
        return there if type(values) is dict else type(values)(there)  # type: ignore[call-arg]
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(_moved(value, device) for value in values))
    if isinstance(values, tuple | list):
        return type(values)(_moved(value, device) for value in values)
    return values


def move_module(module: nn.Module, device: torch.device) -> None:
    """Move a module to a device. Tied parameters stay tied, which torch's own `to` does not promise on every device."""
    if all(tensor.device == device for tensor in (*module.parameters(), *module.buffers())):
        return
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    module.to(device)
    for first, *others in names.values():
        for name in others:
            owner, _, own_name = name.rpartition(".")
            setattr(module.get_submodule(owner), own_name, module.get_parameter(first))


def with_loss_on(device: torch.device, task: Task) -> Task:
    """The task, whose loss may have tensors of its own, such as the weights of classes."""
    if device.type in _PASSIVE or not isinstance(task.loss, nn.Module):
        return task
    return dataclasses.replace(task, loss=copy.deepcopy(task.loss).to(device))


def host_empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory of the processor for what goes to a device or comes from it: pinned, where there is such a thing."""
    return torch.empty(shape, dtype=dtype, pin_memory=_can_pin())


@functools.cache
def _can_pin() -> bool:
    try:
        torch.empty(1, pin_memory=True)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def host_copy(tensor: Tensor) -> Tensor:
    """A copy of a device's tensor in the processor's memory, contiguous."""
    return host_empty(tuple(tensor.shape), tensor.dtype).copy_(tensor)
