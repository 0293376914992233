"""Histories as curves of at most some hundred points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.runs.run import Record

Curve = dict[str, list[float | None]]
"""Columns: steps, seconds, samples, bytes, and the value, which is None if it is not finite."""

_POINTS = 1200
_SMOOTH_POINTS = 400
_SMOOTH_SHARE = 0.03  # share of the history in the window of the moving mean
_DIGITS = 7


def loss_curves(history: Sequence[Record]) -> dict[str, Curve | None]:
    """Return the loss of every step, and its moving mean if there are enough steps."""
    raw = curve(history, lambda record: record.loss)
    window = int(len(history) * _SMOOTH_SHARE)
    if raw is None or window < 2:
        return {"raw": raw, "smooth": None}
    columns = _columns(history)
    smooth = _moving_mean(np.array([record.loss for record in history]), window)
    kept = np.unique(np.linspace(0, len(history) - 1, _SMOOTH_POINTS).round().astype(int))
    return {"raw": raw, "smooth": _as_lists(columns, smooth, kept)}


def curve(history: Sequence[Record], value: Callable[[Record], float | None]) -> Curve | None:
    """Return the records with the value, downsampled but with all peaks; None if no value is finite."""
    having = [record for record in history if value(record) is not None]
    values = np.array([value(record) for record in having], dtype=np.float64)
    if not np.isfinite(values).any():
        return None
    return _as_lists(_columns(having), values, _extremes(values, _POINTS))


def _columns(history: Sequence[Record]) -> dict[str, NDArray[np.float64]]:
    return {
        "steps": np.array([record.step for record in history], dtype=np.float64),
        "seconds": np.array([record.seconds for record in history], dtype=np.float64),
        "samples": np.array([record.samples for record in history], dtype=np.float64),
        "bytes": np.array([record.bytes for record in history], dtype=np.float64),
    }


def _extremes(values: NDArray[np.float64], points: int) -> NDArray[np.intp]:
    """Return the indices of the minimum and maximum of each of `points / 2` equal intervals, and of both ends."""
    if len(values) <= points:
        return np.arange(len(values))
    borders = np.linspace(0, len(values), points // 2 + 1).astype(int)
    kept = {0, len(values) - 1}
    for low, high in pairwise(borders.tolist()):
        stretch = values[low:high]
        finite = np.isfinite(stretch)
        kept.add(int(low + np.argmin(np.where(finite, stretch, np.inf))))
        kept.add(int(low + np.argmax(np.where(finite, stretch, -np.inf))))
    return np.array(sorted(kept))


def _moving_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the mean of the `window` values around each value, or of fewer values at the ends.

    Values that are not finite are skipped.
    """
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    places = np.arange(len(values))
    low = np.maximum(places - window // 2, 0)
    high = np.minimum(places + (window + 1) // 2, len(values))
    count = counts[high] - counts[low]
    means = (sums[high] - sums[low]) / np.maximum(count, 1)
    return np.asarray(np.where(count > 0, means, np.nan))


def _as_lists(columns: dict[str, NDArray[np.float64]], values: NDArray[Any], kept: NDArray[np.intp]) -> Curve:
    every = {**columns, "value": values}
    return {name: [_rounded(x) for x in column[kept].tolist()] for name, column in every.items()}


def _rounded(number: float) -> float | None:
    """Round for short JSON, to more digits than a screen can show. NaN becomes None, because JSON has no NaN."""
    if not math.isfinite(number):
        return None
    rounded = float(f"{number:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
