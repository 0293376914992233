"""The cost of a message from one rank to another."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from paceline.costs.units import format_bandwidth, format_seconds, parse_bandwidth, parse_seconds


@dataclass(frozen=True, slots=True)
class Link:
    """A link: a message of n bytes takes `latency + n / bandwidth`. By default both cost nothing.

    `bandwidth` is text such as "10Gbps" or "1GiB/s", or bytes per second; `latency` is text such as "50us", or seconds.
    Two links are equal if they cost the same, in any notation.
    """

    bandwidth: str | float = field(default=math.inf, compare=False)
    latency: str | float = field(default=0.0, compare=False)
    bytes_per_s: float = field(init=False, repr=False)
    latency_s: float = field(init=False, repr=False)
    seconds_per_byte: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bytes_per_s = parse_bandwidth(self.bandwidth, "Link.bandwidth")
        object.__setattr__(self, "bytes_per_s", bytes_per_s)
        object.__setattr__(self, "latency_s", parse_seconds(self.latency, "Link.latency"))
        object.__setattr__(self, "seconds_per_byte", 1 / bytes_per_s)

    @classmethod
    def ideal(cls) -> Link:
        """Return a link that costs nothing."""
        return cls()

    def seconds(self, nbytes: float) -> float:
        """Return the seconds from the start of a send to the arrival of the message, on an idle link."""
        return self.latency_s + nbytes * self.seconds_per_byte

    def __str__(self) -> str:
        if self.seconds_per_byte == 0 and self.latency_s == 0:
            return "ideal (no cost)"
        return f"{format_bandwidth(self.bytes_per_s)}, {format_seconds(self.latency_s)}"
