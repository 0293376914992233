"""What communication and computation cost, in seconds: links, distributions of times, stragglers, theory."""

from paceline.costs import devices, order_statistics, times, units
from paceline.costs.link import Link
from paceline.costs.stragglers import Stragglers, parse_delay, parse_delays, parse_slow
from paceline.costs.times import Times

__all__ = [
    "Link",
    "Stragglers",
    "Times",
    "devices",
    "order_statistics",
    "parse_delay",
    "parse_delays",
    "parse_slow",
    "times",
    "units",
]
