"""Cost models of communication and computation, in seconds: links, distributions of times, stragglers."""

from paceline.costs import devices, times, units
from paceline.costs.link import Link
from paceline.costs.stragglers import Stragglers, parse_delay, parse_delays, parse_slow
from paceline.costs.times import Times

__all__ = [
    "Link",
    "Stragglers",
    "Times",
    "devices",
    "parse_delay",
    "parse_delays",
    "parse_slow",
    "times",
    "units",
]
