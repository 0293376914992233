"""A link from measured times: the latency and the bandwidth that explain them best."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.costs.link import Link
from paceline.errors import ConfigurationError

__all__ = ["fit_link", "largest_error"]

_REMEDY = "time messages of at least two sizes"


def fit_link(nbytes: npt.ArrayLike, seconds: npt.ArrayLike) -> Link:
    """The link for which `latency + bytes / bandwidth` is nearest to the seconds that messages took.

    Least squares of the relative error: weighted by 1/seconds, so that small messages, which tell the latency, count
    as much as large ones. Neither latency nor seconds a byte can come out below zero.
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
    """By what share of a time the link is off, at worst. A link that is not linear shows it here."""
    sizes, times = np.asarray(nbytes, np.float64), np.asarray(seconds, np.float64)
    found = link.latency_s + sizes * link.seconds_per_byte
    return float(np.abs(found / times - 1).max())


def _solve(sizes: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Latency and seconds a byte, both at least 0."""
    # In units of the largest size, or else the two columns would differ by nine orders of magnitude.
    scale = float(sizes.max())
    columns = np.stack([np.ones_like(sizes), sizes / scale], axis=1) / times[:, None]
    ones = np.ones(len(times))
    latency_s, per_scale = np.linalg.lstsq(columns, ones)[0]
    if latency_s < 0 or per_scale < 0:
        # With two unknowns, the best that is not negative has the negative one at zero.
        kept = 1 if latency_s < 0 else 0
        alone = float(columns[:, kept] @ ones / (columns[:, kept] @ columns[:, kept]))
        return (0.0, alone / scale) if kept else (alone, 0.0)
    return float(latency_s), float(per_scale) / scale
