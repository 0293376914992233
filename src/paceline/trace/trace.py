"""The trace of a run: every span of every rank."""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ConfigurationError
from paceline.files.reading import clean
from paceline.files.writing import write_file
from paceline.trace.bubbles import bubble
from paceline.trace.chrome import chrome_json
from paceline.trace.spans import NO_MESSAGE, SPAN, SPAN_WITHOUT_MESSAGE, Kind, Spans, add_messages
from paceline.trace.summary import Summary, summarize

_ARRAYS = ("seconds", "ranks", "roles", "hosts", "counts", "spans")
_RESIDUAL = "clock_residual_s"  # missing in files of older versions


@dataclass(frozen=True, slots=True)
class Trace:
    """The activities of each rank, from 0 to `seconds`. The spans are sorted by rank."""

    spans: Sequence[Spans]
    seconds: float
    clock_residual_s: float = 0.0
    """Remaining uncertainty of the clocks of several hosts, after correction of their offsets."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ConfigurationError(
                "seconds", "must be finite and at least 0", self.seconds, "give the run's"
            )
        ordered = tuple(sorted(self.spans, key=lambda each: each.rank))
        ranks = [each.rank for each in ordered]
        if len(set(ranks)) != len(ranks):
            raise ConfigurationError(
                "spans", "must come once from each rank", ranks, "pack each recorder once"
            )
        object.__setattr__(self, "spans", ordered)

    def summary(self) -> Summary:
        """Return where the time went."""
        return summarize(self.spans, self.seconds, self.clock_residual_s)

    @property
    def has_causes(self) -> bool:
        """Whether spans have message ids, so that the cause of each wait is known.

        False in traces of old versions.
        """
        waits = [each.of(Kind.WAIT)[["peer", "message"]] for each in self.spans]
        others = [array[array["peer"] != each.rank] for each, array in zip(self.spans, waits, strict=True)]
        return not any(map(len, others)) or any((array["message"] != NO_MESSAGE).any() for array in others)

    @property
    def bubble(self) -> float:
        """Fraction of time in which the ranks that compute are idle: see `paceline.trace.bubbles`."""
        return bubble(self.spans)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write Chrome trace events for Perfetto. Compressed if the name ends in .gz."""
        data = chrome_json(self.spans, self.seconds).encode()
        if Path(path).suffix == ".gz":
            # No time of day in the header, so that equal traces give equal files.
            data = gzip.compress(data, mtime=0)
        write_file(path, data)

    def draw(self, path: str | os.PathLike[str], *, until_s: float | None = None, title: str = "") -> None:
        """Write an SVG of the first `until_s` seconds (default: all): one lane per rank, messages between lanes."""
        from paceline.trace.picture import draw

        picture = draw(self.spans, self.seconds if until_s is None else until_s, title=title)
        write_file(path, picture.encode())

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the trace as arrays that `numpy.savez` stores without pickle."""
        return {
            "seconds": np.array(self.seconds),
            _RESIDUAL: np.array(self.clock_residual_s),
            "ranks": np.array([each.rank for each in self.spans], dtype=np.int64),
            "roles": np.array([each.role for each in self.spans], dtype=np.str_),
            "hosts": np.array([each.host for each in self.spans], dtype=np.int64),
            "counts": np.array([len(each) for each in self.spans], dtype=np.int64),
            "spans": np.concatenate([np.empty(0, dtype=SPAN), *(each.array for each in self.spans)]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Trace:
        """Return the trace from the arrays of `to_arrays` or of `numpy.load(…, allow_pickle=False)`.

        Arrays of older versions have no message ids: see `has_causes`.
        """
        missing = [name for name in _ARRAYS if name not in arrays]
        if missing:
            raise ConfigurationError(
                "arrays", f"must have {', '.join(_ARRAYS)}", sorted(arrays), "save the run again"
            )
        found = {name: np.asarray(arrays[name]) for name in arrays if name in (*_ARRAYS, _RESIDUAL)}
        if found["spans"].dtype == SPAN_WITHOUT_MESSAGE and found["spans"].ndim == 1:
            found["spans"] = add_messages(found["spans"])
        _check_arrays(found)
        seconds, ranks, roles, hosts, counts, spans = (found[name] for name in _ARRAYS)
        pieces = np.split(spans, np.cumsum(counts)[:-1])
        texts = [clean(role) for role in roles.tolist()]
        each = zip(pieces, ranks.tolist(), texts, hosts.tolist(), strict=False)
        residual_s = float(found.get(_RESIDUAL, 0.0))
        return cls([Spans(*fields) for fields in each], float(seconds), residual_s)


def _check_arrays(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Validate arrays from an untrusted file."""
    looks = {name: f"{array.dtype} of shape {array.shape}" for name, array in arrays.items()}
    scalars = [array for name, array in arrays.items() if name in ("seconds", _RESIDUAL)]
    lists = [arrays[name] for name in ("ranks", "roles", "hosts", "counts")]
    fits = all(array.shape == () and array.dtype.kind == "f" for array in scalars)
    fits = fits and "".join(array.dtype.kind for array in lists) == "iUii" and arrays["spans"].dtype == SPAN
    fits = fits and all(array.shape == arrays["ranks"].shape and array.ndim == 1 for array in lists)
    fits = fits and arrays["spans"].ndim == 1 and sum(arrays["counts"].tolist()) == len(arrays["spans"])
    if not fits or (arrays["counts"] < 0).any() or (arrays["hosts"] < 0).any():
        raise ConfigurationError("arrays", "must belong together", looks, "save the run again")
