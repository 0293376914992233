"""The random numbers that a user's code may draw: torch's, numpy's and Python's own, which are global.

Paceline itself draws from generators of its own. Torch and numpy are imported late.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

__all__ = [
    "Standing",
    "drawing",
    "fetch_seed",
    "kept",
    "part_seed",
    "rank_seed",
    "seed_all",
    "seeded",
    "stand_at",
    "standing",
    "stream_seed",
]


def rank_seed(seed: int, rank: int) -> int:
    """What the seeds of a rank's steps begin at: the step is added."""
    return (seed * 1_000_003 + rank) * 1_000_003 % 2**63


# Torch's generator of the CPU takes the low 32 bits of a seed, and numpy's too: seeds must differ in those.
_FETCHING, _STREAMING, _PARTS_APART = 1_640_531_527, 3_266_489_917, 2_654_435_769


def part_seed(first: int, step: int, part: int = 0) -> int:
    """What a rank draws for a part of its batch of a step. Its seeds begin at `first`."""
    return (first + step + part * _PARTS_APART) % 2**63


def fetch_seed(number: int) -> int:
    """Samples are fetched by another seed than the model computes by, or a dropout would repeat an augmentation."""
    return (number + _FETCHING) % 2**63


def stream_seed(seed: int, batch: int) -> int:
    """What a stream draws while it is read belongs to no rank: all read the same."""
    return (rank_seed(seed, 0) + _STREAMING + batch) % 2**63


_one_draws = threading.RLock()


def drawing() -> AbstractContextManager[object]:
    """While this thread draws what it has seeded. Another thread that seeds would change it, and waits instead.

    A rank that serves and computes has two threads: one looks at the model while the other computes a gradient.
    """
    return _one_draws


def _forget_the_parents_threads() -> None:
    """A thread that held the lock when this process was forked is not there to release it."""
    global _one_draws
    _one_draws = threading.RLock()


os.register_at_fork(after_in_child=_forget_the_parents_threads)


def seed_all(seed: int) -> None:
    """Begin all three anew. The seed has up to 63 bits."""
    import numpy as np
    import torch

    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


class Standing(NamedTuple):
    """Where the random numbers stand."""

    python: Any
    legacy: Any
    """numpy's own."""
    torch: Any
    device: Any
    """Those of the device in use; None if there is none."""


def standing() -> Standing:
    """Where they stand now, on the processor and on the device in use."""
    import numpy as np
    import torch

    device = _device_in_use()
    there = None
    if device["devices"]:
        there = torch.get_device_module(device["device_type"]).get_rng_state(device["devices"][0])
    return Standing(random.getstate(), np.random.get_state(), torch.default_generator.get_state(), there)


def stand_at(where: Standing) -> None:
    """Go back to where they stood."""
    import numpy as np
    import torch

    random.setstate(where.python)
    np.random.set_state(where.legacy)
    torch.default_generator.set_state(where.torch)
    if where.device is not None:
        device = _device_in_use()
        torch.get_device_module(device["device_type"]).set_rng_state(where.device, device["devices"][0])


@contextmanager
def kept() -> Iterator[None]:
    """Whatever is drawn or seeded meanwhile, the caller goes on as if it had not been."""
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
    """Chance as this seed has it, on every device; undone afterwards."""
    import torch

    with kept(), torch.random.fork_rng(**_device_in_use()):
        torch.manual_seed(seed)
        seed_all(seed)
        yield


def _device_in_use() -> dict[str, Any]:
    """The device, beside the processor, whose generator the user's code may draw from; none if none is in use."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or not torch.get_device_module(found).is_initialized():
        return {"devices": []}
    return {"devices": [torch.accelerator.current_device_index()], "device_type": found.type}
