"""Measured costs of the links and computations of one machine, and how they are read from a file."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.costs.fit import largest_error
from paceline.costs.link import Link
from paceline.costs.pass_shares import PassShares
from paceline.files.reading import Fields, list_of, mapping_of, optional, seconds, text, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCosts:
    """A link between ranks of the machine, fitted to messages of several sizes."""

    kind: str
    """"shared-memory" or "tcp" for messages; "window" for reads and barriers of memory that ranks share."""
    ranks: int
    """Number of ranks that exchanged messages at the same time."""
    latency_s: float
    message_s: float
    """Time that each message occupies its ports."""
    bytes_per_s: float
    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    """Measured seconds of a message of each size."""

    @property
    def link(self) -> Link:
        return Link(self.bytes_per_s, self.latency_s, self.message_s)

    @property
    def residual(self) -> float:
        """Largest relative error of the fit."""
        line = Link(self.bytes_per_s, self.latency_s + self.message_s)
        return largest_error(line, self.sizes_bytes, self.seconds)

    @classmethod
    def read(cls, fields: Fields) -> LinkCosts:
        """Return the costs in a saved calibration."""
        rate = fields.get("bytes_per_s", optional(_rate))
        made = cls(
            kind=fields.get("kind", text),
            ranks=fields.get("ranks", positive),
            bytes_per_s=float("inf") if rate is None else rate,
            latency_s=fields.get("latency_s", seconds),
            message_s=fields.get("message_s", seconds),
            sizes_bytes=tuple(fields.get("sizes_bytes", list_of(whole))),
            seconds=tuple(fields.get("seconds", list_of(_rate))),
        )
        if len(made.sizes_bytes) != len(made.seconds):
            raise ValueError("a link must have one time for each size")
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeCosts:
    """Costs of computations on ranks with a number of threads."""

    threads: int
    slowdown: Mapping[int, float]
    """Factor on the seconds of a computation, by the number of ranks that compute at the same time."""
    fixed_s: float = 0.0
    """Fixed seconds of a gradient, independent of its samples. 0 without a task."""
    per_sample_s: float = 0.0
    update_s: float = 0.0
    update_bytes: int = 0
    """Bytes of the parameters that are updated in `update_s`."""
    samples: tuple[int, ...] = ()
    """Numbers of samples that were measured. Empty without a task."""
    seconds: tuple[float, ...] = ()
    """Measured seconds of a gradient of each number of samples."""
    passes: PassShares | None = None
    """Shares of the passes through a split model. None without a task, or if the model cannot be split."""

    @property
    def residual(self) -> float:
        """Largest relative error of the fitted line. 0 without a task."""
        pairs = zip(self.samples, self.seconds, strict=True)
        return max((abs((self.fixed_s + self.per_sample_s * n) / s - 1) for n, s in pairs), default=0.0)

    def line_near(self, samples: float) -> tuple[float, float]:
        """Return fixed seconds and seconds per sample of gradients of about this size.

        It is the line through the two measured points around it: small and large gradients differ in their efficiency.
        """
        points = list(zip(self.samples, self.seconds, strict=True))
        if len(points) < 2:
            return self.fixed_s, self.per_sample_s
        place = min(max(1, bisect_left(self.samples, samples)), len(points) - 1)
        (one, one_s), (other, other_s) = points[place - 1 : place + 1]
        per_sample_s = (other_s - one_s) / (other - one)
        fixed_s = one_s - per_sample_s * one
        # Times that fall with the samples, or a line through negative seconds, are noise.
        return (
            (fixed_s, per_sample_s)
            if per_sample_s > 0 and fixed_s >= 0
            else (self.fixed_s, self.per_sample_s)
        )

    def factor(self, at_once: int) -> float:
        """Return the slowdown of ranks that compute at the same time. Ranks beyond those measured share evenly."""
        known = sorted(self.slowdown)
        if at_once >= known[-1]:
            return self.slowdown[known[-1]] * at_once / known[-1] if known[-1] > 1 else float(at_once)
        if at_once in self.slowdown:
            return self.slowdown[at_once]
        low = max((count for count in known if count < at_once), default=known[0])
        high = min(count for count in known if count > at_once)
        share = (at_once - low) / (high - low)
        return self.slowdown[low] * (1 - share) + self.slowdown[high] * share

    @classmethod
    def read(cls, fields: Fields) -> ComputeCosts:
        """Return the costs in a saved calibration."""
        factors = fields.get("slowdown", mapping_of(text, _rate))
        if not factors or not all(count.isdecimal() and int(count) > 0 for count in factors):
            raise ValueError("slowdown must have a factor for each number of ranks")
        made = cls(
            threads=fields.get("threads", positive),
            slowdown={int(count): factor for count, factor in factors.items()},
            update_bytes=fields.get("update_bytes", whole),
            samples=tuple(fields.get("samples", list_of(positive))),
            seconds=tuple(fields.get("seconds", list_of(_rate))),
            passes=fields.get("passes", optional(_passes), None),
            **{name: fields.get(name, seconds) for name in ("fixed_s", "per_sample_s", "update_s")},
        )
        if len(made.samples) != len(made.seconds) or sorted({*made.samples}) != list(made.samples):
            raise ValueError("compute must have one time for each number of samples, in order")
        return made


def _passes(value: object) -> PassShares:
    fields = Fields(value)
    made = PassShares(
        ends=tuple(fields.get("ends", list_of(positive))),
        forward=tuple(fields.get("forward", list_of(seconds))),
        backward=tuple(fields.get("backward", list_of(seconds))),
    )
    if not len(made.ends) == len(made.forward) == len(made.backward) or not made.ends:
        raise ValueError("must have a forward and a backward share for each end")
    if sorted({*made.ends}) != list(made.ends):
        raise ValueError("must have ends in order")
    return made


def positive(value: object) -> int:
    if not (found := whole(value)):
        raise ValueError("must be at least 1")
    return found


def _rate(value: object) -> float:
    if not (found := seconds(value)):
        raise ValueError("must be more than 0")
    return found
