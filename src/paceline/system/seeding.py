"""The global random number generators of torch, numpy and Python, which user code may use.

Paceline itself uses its own generators. Torch and numpy are imported late.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple


def rank_seed(seed: int, rank: int) -> int:
    """Return the first seed of a rank. The seed of a step is this number plus the step number."""
    return (seed * 1_000_003 + rank) * 1_000_003 % 2**63


# The CPU generators of torch and numpy use only the low 32 bits of a seed, so seeds must differ in these bits.
_FETCHING, _STREAMING, _PARTS_APART = 1_640_531_527, 3_266_489_917, 2_654_435_769


def part_seed(first: int, step: int, part: int = 0) -> int:
    """Return the seed for one part of a rank's batch in a step. `first` is the rank's first seed."""
    return (first + step + part * _PARTS_APART) % 2**63


def fetch_seed(number: int) -> int:
    """Return the seed for fetching samples. It differs from the model's seed, so dropout and augmentation differ."""
    return (number + _FETCHING) % 2**63


def stream_seed(seed: int, batch: int) -> int:
    """Return the seed for reading a batch of a stream.

    The seed is the same on all ranks, so that all ranks read the same stream.
    """
    return (rank_seed(seed, 0) + _STREAMING + batch) % 2**63


_one_draws = threading.RLock()


def drawing() -> AbstractContextManager[object]:
    """Return the lock to hold while this thread seeds the global generators and draws from them.

    A rank that is both a server and a worker has two threads: one may evaluate while the other computes a gradient.
    """
    return _one_draws


def _forget_the_parents_threads() -> None:
    """Replace the lock in a forked process: a thread of the parent that held it does not exist here."""
    global _one_draws
    _one_draws = threading.RLock()


os.register_at_fork(after_in_child=_forget_the_parents_threads)


def seed_all(seed: int) -> None:
    """Seed all three generators. The seed has up to 63 bits."""
    import numpy as np
    import torch

    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


class RngState(NamedTuple):
    """The state of the global random number generators."""

    python: Any
    legacy: Any
    """State of numpy's global generator."""
    torch: Any
    device: Any
    """State of the generator of the device in use; None if there is no device."""


def rng_state() -> RngState:
    """Return the current state of the generators, on the CPU and on the device in use."""
    import numpy as np
    import torch

    device = _device_in_use()
    there = None
    if device["devices"]:
        there = torch.get_device_module(device["device_type"]).get_rng_state(device["devices"][0])
    return RngState(random.getstate(), np.random.get_state(), torch.default_generator.get_state(), there)


def restore_rng(where: RngState) -> None:
    """Restore a saved state of the generators."""
    import numpy as np
    import torch

    random.setstate(where.python)
    np.random.set_state(where.legacy)
    torch.default_generator.set_state(where.torch)
    if where.device is not None:
        device = _device_in_use()
        torch.get_device_module(device["device_type"]).set_rng_state(where.device, device["devices"][0])


@contextmanager
def rng_preserved() -> Iterator[None]:
    """Restore the CPU generators after this block."""
    import numpy as np
    import torch

    python, legacy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators in this block, on the CPU and the device in use, and restore them afterwards."""
    import torch

    with rng_preserved(), torch.random.fork_rng(**_device_in_use()):
        torch.manual_seed(seed)
        seed_all(seed)
        yield


def _device_in_use() -> dict[str, Any]:
    """Return arguments of `fork_rng` for the accelerator in use. Its list of devices is empty if there is none."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or not torch.get_device_module(found).is_initialized():
        return {"devices": []}
    return {"devices": [torch.accelerator.current_device_index()], "device_type": found.type}


class RngLease:
    """The global generators, leased to one of several computations that alternate in one process.

    A computation that takes the lease gets the generators in the state in which it returned them. The state is
    copied only if another computation has taken the lease in between, so a process with one computation copies
    nothing.
    """

    _holder: RngLease | None = None

    def __init__(self) -> None:
        self._state: RngState | None = None

    def take(self) -> None:
        """Take the lease: at the start of a computation, and whenever it is resumed."""
        before = RngLease._holder
        if before is self:
            return
        if before is not None:
            before._state = rng_state()
        if self._state is not None:
            restore_rng(self._state)
        RngLease._holder = self

    def end(self) -> None:
        """Return the lease at the end of a computation."""
        self._state = None
        if RngLease._holder is self:
            RngLease._holder = None
