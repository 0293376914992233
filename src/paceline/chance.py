"""The random numbers that a user's code may draw: torch's, numpy's and Python's own, which are global.

Paceline itself draws from generators of its own. Torch and numpy are imported late.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["fetch_seed", "kept", "rank_seed", "seed_all", "seeded"]


def seed_all(seed: int) -> None:
    """Begin all three anew. The seed has up to 63 bits."""
    import numpy as np
    import torch

    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


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

    with kept(), torch.random.fork_rng():
        torch.manual_seed(seed)
        seed_all(seed)
        yield


def rank_seed(seed: int, rank: int) -> int:
    """What the seeds of a rank's steps begin at: the step is added."""
    return (seed * 1_000_003 + rank) * 1_000_003 % 2**63


def fetch_seed(number: int) -> int:
    """Samples are fetched by another seed than the model computes by, or a dropout would repeat an augmentation."""
    return (number + 2**62) % 2**63
