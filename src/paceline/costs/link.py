"""The cost of a message from one rank to another."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from paceline.costs.units import format_bandwidth, format_seconds, parse_bandwidth, parse_seconds


@dataclass(frozen=True, slots=True)
class Link:
    """A link: a message of n bytes takes `latency + message + n / bandwidth`. By default all cost nothing.

    `bandwidth` is text such as "10Gbps" or "1GiB/s", or bytes per second; `latency` is text such as "50us", or seconds.
    `message` is the time that each message occupies its ports, besides that of its bytes: calibrated links have it.
    Two links are equal if they cost the same, in any notation.
    """

    bandwidth: str | float = field(default=math.inf, compare=False)
    latency: str | float = field(default=0.0, compare=False)
    message: str | float = field(default=0.0, compare=False)
    bytes_per_s: float = field(init=False, repr=False)
    latency_s: float = field(init=False, repr=False)
    seconds_per_byte: float = field(init=False, repr=False)
    message_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bytes_per_s = parse_bandwidth(self.bandwidth, "Link.bandwidth")
        object.__setattr__(self, "bytes_per_s", bytes_per_s)
        object.__setattr__(self, "latency_s", parse_seconds(self.latency, "Link.latency"))
        object.__setattr__(self, "seconds_per_byte", 1 / bytes_per_s)
        object.__setattr__(self, "message_s", parse_seconds(self.message, "Link.message"))

    @classmethod
    def ideal(cls) -> Link:
        """Return a link that costs nothing."""
        return cls()

    def seconds(self, nbytes: float) -> float:
        """Return the seconds from the start of a send to the arrival of the message, on an idle link."""
        return self.latency_s + self.carry_s(nbytes)

    def carry_s(self, nbytes: float) -> float:
        """Return the seconds that a message occupies each of its ports."""
        return self.message_s + nbytes * self.seconds_per_byte

    def __str__(self) -> str:
        if self.seconds_per_byte == 0 and self.latency_s == 0 and self.message_s == 0:
            return "ideal (no cost)"
        each = f", {format_seconds(self.message_s)} a message" if self.message_s else ""
        return f"{format_bandwidth(self.bytes_per_s)}, {format_seconds(self.latency_s)}{each}"
