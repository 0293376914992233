"""Optimizers and learning-rate schedules for large batches. They also work in a plain PyTorch loop.

See docs/large_batches.md.
"""

from __future__ import annotations

from paceline.optim.lamb import LAMB
from paceline.optim.lars import LARS
from paceline.optim.schedules import cosine, polynomial, scaled, warmup

__all__ = ["LAMB", "LARS", "cosine", "polynomial", "scaled", "warmup"]
