"""The predicted step of a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of a step, as the mean over the ranks of one row. They add up to the step."""

    compute: float
    """Forward and backward passes."""
    communicate: float
    """Collectives that do not overlap with computation: of tensor groups, and of gradients along the data axis."""
    wait: float
    """Waiting for the slowest rank at the end of a step."""
    bubble: float
    """Waiting within a pipeline, for its first micro-batches, its last ones, its messages and its slowest stage."""
    update: float

    @classmethod
    def mean(cls, shares: Sequence[tuple[Parts, float]]) -> Parts:
        """Return the mean of several steps, each with its share."""
        names = (each.name for each in fields(cls))
        return cls(**{name: sum(getattr(parts, name) * share for parts, share in shares) for name in names})

    @property
    def total(self) -> float:
        return self.compute + self.communicate + self.wait + self.bubble + self.update


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How long a step takes, and the memory that it needs."""

    step_seconds: float
    parts: Parts
    memory_bytes: int
    """Peak of the rank that needs the most."""
    device_bytes: int | None
    """Memory of a device; None if it is not known."""
    batch_size: int
    tokens_per_sample: int | None = None

    @property
    def fits(self) -> bool:
        """Whether every rank has enough memory. True if the memory of a device is not known."""
        return self.device_bytes is None or self.memory_bytes <= self.device_bytes

    @property
    def samples_per_second(self) -> float:
        return self.batch_size / self.step_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """None if the samples are not sequences of tokens."""
        return None if self.tokens_per_sample is None else self.samples_per_second * self.tokens_per_sample

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {getattr(self.parts, name) / self.step_seconds:.0%}"
            for name in ("compute", "communicate", "wait", "bubble", "update")
        )
        words = "" if self.fits else ", which does not fit"
        return f"{self.step_seconds:.4g} s a step ({parts}), {self.memory_bytes / 1e9:.3g} GB{words}"
