"""Devices: the device of each rank, and transfers to and from it.

The model and the batches of a rank are on its device. Links send and receive CPU memory. So tensors to send are copied
to CPU memory first, and received tensors are copied to the device. This CPU memory is pinned if the device supports it.
Nothing here depends on a vendor: `torch.accelerator` finds the device.
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
from paceline.task.task import Task

CPU = torch.device("cpu")
_PASSIVE = ("cpu", "meta")  # devices without asynchronous execution


def check_device(word: str) -> None:
    """Raise ConfigurationError if a device is not available."""
    device_of(word, 0)


def device_of(word: str, place: int) -> torch.device:
    """Return the device of a rank.

    `place` is the rank's number on its host. "gpu" is the accelerator of any vendor.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    if word == "cpu" or (word == "auto" and found is None):
        return CPU
    if found is None or word not in ("auto", "gpu", found.type):
        here = 'must be "cpu" or "auto": torch finds no accelerator here'
        bound = here if found is None else f'must be "cpu", "auto", "gpu" or "{found.type}"'
        remedy = "leave out the number: ranks use the devices of their host in turn"
        if found is None:
            remedy = "install the build of torch for your device; an external backend must be imported first"
        raise ConfigurationError("device", bound, word, remedy)
    return torch.device(found.type, place % torch.accelerator.device_count())


def enter(device: torch.device) -> None:
    """Make this device the current one for the calling thread."""
    if device.type not in _PASSIVE:
        torch.accelerator.set_device_index(device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all submitted work. Devices run asynchronously."""
    if device.type not in _PASSIVE:
        torch.accelerator.synchronize(device)


class Accelerator:
    """The asynchronous device of a replica: its timing, random numbers and batches."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._first, self._last = (torch.Event(device=device, enable_timing=True) for _ in range(2))

    @classmethod
    def of(cls, device: torch.device) -> Accelerator | None:
        """Return the accelerator; None for the CPU and the meta device."""
        return None if device.type in _PASSIVE else cls(device)

    def begin(self) -> None:
        """Start timing work of this thread."""
        enter(self._device)
        self._first.record()

    def end(self) -> float:
        """Wait until the device has finished the work. Return its seconds, measured by events in its queue."""
        self._last.record()
        self._last.synchronize()
        return self._first.elapsed_time(self._last) / 1000

    def seed(self, seed: int) -> None:
        """Seed the random numbers of the device, used by dropout for example."""
        torch.get_device_module(self._device).manual_seed(seed)

    def take(self, batch: Any) -> Any:
        """Return a batch on the device."""
        return _moved(batch, self._device)


def moved(values: Any, device: torch.device) -> Any:
    """Return a batch on a device: tensors, and lists, tuples and dictionaries of them, nested to any depth."""
    return values if device.type in _PASSIVE else _moved(values, device)


def _moved(values: Any, device: torch.device) -> Any:
    if hasattr(values, "to"):  # a tensor, or a batch with its own `to`, such as a packed sequence
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
    """Move a module to a device.

    Tied parameters remain tied. Torch's `to` does not guarantee this on every device.
    """
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
    """Return the task with its loss on the device. A loss may contain tensors, such as class weights."""
    if device.type in _PASSIVE or not isinstance(task.loss, nn.Module):
        return task
    return dataclasses.replace(task, loss=copy.deepcopy(task.loss).to(device))


def host_empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate CPU memory for transfers to and from a device: pinned if supported."""
    return torch.empty(shape, dtype=dtype, pin_memory=_can_pin())


@functools.cache
def _can_pin() -> bool:
    try:
        torch.empty(1, pin_memory=True)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def host_copy(tensor: Tensor) -> Tensor:
    """Return a contiguous copy of a device tensor in CPU memory."""
    return host_empty(tuple(tensor.shape), tensor.dtype).copy_(tensor)
