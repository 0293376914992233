"""Fits to measured times: a line, and a link with its latency and bandwidth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.costs.link import Link
from paceline.errors import ConfigurationError

_REMEDY = "time messages of at least two sizes"


def fit_line(amounts: npt.ArrayLike, seconds: npt.ArrayLike) -> tuple[float, float]:
    """Return fixed seconds and seconds per unit: the line with the smallest relative error. None is negative."""
    found, times = np.asarray(amounts, np.float64), np.asarray(seconds, np.float64)
    return _solve(found, times) if len(np.unique(found)) > 1 else (0.0, float(np.mean(times / found)))


def fit_link(nbytes: npt.ArrayLike, seconds: npt.ArrayLike) -> Link:
    """Return the link for which `latency + bytes / bandwidth` is closest to the measured seconds.

    Least squares of the relative error: weighted by 1/seconds, so that small messages, which determine the latency,
    count as much as large ones. Neither the latency nor the seconds per byte can be negative.
    """
    sizes, times = np.asarray(nbytes, np.float64), np.asarray(seconds, np.float64)
    if sizes.ndim != 1 or sizes.shape != times.shape:
        raise ConfigurationError("nbytes", f"must have one size for each of {times.shape} times", sizes.shape)
    if len(np.unique(sizes)) < 2:
        raise ConfigurationError("nbytes", "must have at least 2 different sizes", sizes.tolist(), _REMEDY)
    if not (np.isfinite(times) & (times > 0)).all():
        raise ConfigurationError("seconds", "must be finite and above 0", times.tolist())
    latency_s, seconds_per_byte = _solve(sizes, times)
    return Link(bandwidth=1 / seconds_per_byte if seconds_per_byte > 0 else np.inf, latency=latency_s)


def largest_error(link: Link, nbytes: npt.ArrayLike, seconds: npt.ArrayLike) -> float:
    """Return the largest relative error of the link's times. It is large for a link that is not linear."""
    sizes, times = np.asarray(nbytes, np.float64), np.asarray(seconds, np.float64)
    found = link.latency_s + sizes * link.seconds_per_byte
    return float(np.abs(found / times - 1).max())


def _solve(sizes: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return latency and seconds per byte, both at least 0."""
    # In units of the largest size, because otherwise the two columns differ by nine orders of magnitude.
    scale = float(sizes.max())
    columns = np.stack([np.ones_like(sizes), sizes / scale], axis=1) / times[:, None]
    ones = np.ones(len(times))
    latency_s, per_scale = np.linalg.lstsq(columns, ones)[0]
    if latency_s < 0 or per_scale < 0:
        # If one of the two unknowns is negative, the best non-negative solution has zero in its place.
        kept = 1 if latency_s < 0 else 0
        alone = float(columns[:, kept] @ ones / (columns[:, kept] @ columns[:, kept]))
        return (0.0, alone / scale) if kept else (alone, 0.0)
    return float(latency_s), float(per_scale) / scale
