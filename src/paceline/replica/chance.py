"""The random numbers that a user's code draws: Python's, numpy's and torch's, which each process has once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["chance_kept", "fetch_seed", "rank_seed", "seed_all"]


def rank_seed(seed: int, rank: int) -> int:
    """What the seeds of a rank's steps begin at: the step is added. Torch takes 64 bits."""
    return (seed * 1_000_003 + rank) * 1_000_003 % 2**63


def seed_all(number: int) -> None:
    """Let all that is drawn from now on be set by a number."""
    torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)


def fetch_seed(number: int) -> int:
    """Samples are fetched by another seed than the model computes by, or a dropout would repeat an augmentation."""
    return (number + 2**62) % 2**63


@contextmanager
def chance_kept() -> Iterator[None]:
    """Leave the caller's random numbers as they were."""
    python, legacy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)
