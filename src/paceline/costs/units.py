"""Parsing and formatting of seconds, bytes and bytes per second.

Text is converted with exact fractions and rounded once, so that "50us" is exactly the float 50e-6.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from fractions import Fraction
from numbers import Rational, Real

from paceline.errors import ConfigurationError

SECONDS_FORMS = 'write "50us", "2ms", "1.5s", "3min", "1h", or a number of seconds'
BANDWIDTH_FORMS = 'write "10Gbps" or "100Mbit/s" (bits), "1GB/s" or "1GiB/s", "inf", or bytes per second'
BYTES_FORMS = 'write "4K", "64M" or "1GiB" (powers of 1024), "1KB" (1000), or a whole number of bytes'

_NUMBER_AND_UNIT = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([^\d\s.]*)\s*", re.ASCII
)
_LONGEST_TEXT = 64

_SECONDS = {
    "": Fraction(1),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "\u00b5s": Fraction(1, 10**6),  # the micro sign
    "\u03bcs": Fraction(1, 10**6),  # the Greek letter, which looks the same
    "ns": Fraction(1, 10**9),
    "min": Fraction(60),
    "h": Fraction(3600),
}
_DECIMAL = {prefix: Fraction(1000**power) for power, prefix in enumerate(("", "K", "M", "G", "T"))}
_BINARY = {prefix + "i": Fraction(1024**power) for power, prefix in enumerate("KMGT", start=1)}


def _bandwidth_units() -> dict[str, Fraction]:
    """Return all spellings. Only the case of b (bit) and B (byte) matters: "k" and "g" mean "K" and "G"."""
    units = {"": Fraction(1)}
    for prefix, scale in (_DECIMAL | _BINARY).items():
        for spelt in {prefix, prefix.lower()}:
            units |= {spelt + per: scale for per in ("B/s", "Bps")}
            units |= {spelt + per: scale / 8 for per in ("bps", "b/s", "bit/s", "bit")}
    return units


def _bytes_units() -> dict[str, Fraction]:
    """Return all spellings. A plain K is 1024, as in nccl-tests and dd; KB is 1000 and KiB 1024, as standardized."""
    units = {"": Fraction(1), "B": Fraction(1)}
    for power, prefix in enumerate("KMGT", start=1):
        for spelt in (prefix, prefix.lower()):
            units[spelt] = units[spelt + "iB"] = Fraction(1024**power)
            units[spelt + "B"] = Fraction(1000**power)
    return units


_BANDWIDTHS = _bandwidth_units()
_BYTES = _bytes_units()


def parse_seconds(value: str | float, argument: str = "seconds") -> float:
    """Parse seconds, finite and not negative. `argument` names the value in an error."""
    seconds = _parse(value, _SECONDS, argument, "must be a time", SECONDS_FORMS)
    if not 0 <= seconds <= sys.float_info.max:
        raise ConfigurationError(argument, "must be finite and at least 0 seconds", value, SECONDS_FORMS)
    return float(seconds)


def parse_bandwidth(value: str | float, argument: str = "bandwidth") -> float:
    """Parse bytes per second, more than 0. Infinity means that bytes cost nothing."""
    bandwidth = _parse(value, _BANDWIDTHS, argument, "must be a bandwidth", BANDWIDTH_FORMS)
    if math.isinf(bandwidth) and bandwidth > 0:
        return math.inf
    # Below the smallest normal float, the seconds per byte would be infinite.
    if not sys.float_info.min <= bandwidth <= sys.float_info.max:
        raise ConfigurationError(argument, "must be more than 0 bytes per second", value, BANDWIDTH_FORMS)
    return float(bandwidth)


def parse_bytes(value: str | int, argument: str = "bytes") -> int:
    """Parse a whole number of bytes, not negative."""
    count = _parse(value, _BYTES, argument, "must be a number of bytes", BYTES_FORMS)
    if not 0 <= count < math.inf or count != int(count):
        raise ConfigurationError(argument, "must be a whole number of at least 0 bytes", value, BYTES_FORMS)
    return int(count)


def check_positive(value: object, argument: str, remedy: str) -> None:
    """Raise an error if the value is not a finite number above 0."""
    number = _exact(value)
    if number is None or not 0 < number <= sys.float_info.max:
        raise ConfigurationError(argument, "must be a finite number above 0", value, remedy)


def _parse(
    value: object, units: Mapping[str, Fraction], argument: str, bound: str, forms: str
) -> Fraction | float:
    """Return an exact fraction, or a float for infinity and NaN, which the caller checks."""
    number = _parse_text(value, units) if isinstance(value, str) else _exact(value)
    if number is None:
        raise ConfigurationError(argument, bound, value, forms)
    return number


def _exact(value: object) -> Fraction | float | None:
    # Numpy numbers are Real too. So are True and False, which are rejected.
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    number = float(value)
    return Fraction(number) if math.isfinite(number) else number


def _parse_text(text: str, units: Mapping[str, Fraction]) -> Fraction | float | None:
    if text.strip().lower() in ("inf", "infinity", "infinite"):
        return math.inf
    match = _NUMBER_AND_UNIT.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if match is None or match[2] not in units:
        return None
    return Fraction(match[1]) * units[match[2]]


def format_seconds(seconds: float) -> str:
    """Format three digits with a unit, such as "12.3 ms"; longer times as "2 min 5 s" or "1 h 2 min"."""
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    rounded = float(f"{seconds:.3g}")
    if rounded < 60 or not math.isfinite(rounded):
        return _scaled(rounded, {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0})
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def format_bytes(count: float) -> str:
    """Format bytes in powers of 1024: "512 B", "1.5 KiB", "64 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if float(f"{count:.4g}") < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def format_bandwidth(bytes_per_s: float) -> str:
    """Format a bandwidth in bits: "10 Gbit/s"."""
    if math.isinf(bytes_per_s):
        return "unlimited"
    rounded = float(f"{bytes_per_s * 8:.3g}")
    return _scaled(rounded, {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "Tbit/s": 1e12})


def _scaled(rounded: float, units: Mapping[str, float]) -> str:
    """Format three digits in the largest of `units` (smallest first) that leaves the value at least 1."""
    names = list(units)
    # Zero and NaN use the unit of size 1.
    fitting = [name for name in names if rounded >= units[name]] or names[:1]
    unit = fitting[-1] if rounded > 0 and math.isfinite(rounded) else next(n for n in names if units[n] == 1)
    return f"{rounded / units[unit]:.4g} {unit}"
