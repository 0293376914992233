"""Whether a codec paid off in a comparison, and the bandwidth below which it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from paceline.analysis.comparison.reason import Seen
from paceline.codecs.speed import speed_of
from paceline.costs.units import format_bandwidth, format_bytes, format_seconds
from paceline.errors import PacelineError
from paceline.strategies import parse

NONE = "none"
_WORDS = ("codec", "pull_codec")


def about_codecs(looked: Sequence[Seen]) -> list[str]:
    """Return a sentence for each entry with a codec whose strategy was also compared without one."""
    plain = {_key(seen.run.strategy): seen for seen in looked if _codec_of(seen) == NONE}
    said = []
    for seen in looked:
        codec, key = _codec_of(seen), _key(seen.run.strategy)
        if codec != NONE and key in plain:
            said.append(_sentence(codec, seen, plain[key]))
    return said


def break_even(codec: str, sent_bytes: float, plain_bytes: float, ranks: int) -> tuple[float, float]:
    """Return the bandwidth in bytes per second below which a codec saves time, and the seconds that it takes a step.

    The bytes are those of a step, at the rank that sends most. Encoding and decoding are measured on this machine. The
    bandwidth is 0 if the codec saves no bytes.
    """
    coding_s = speed_of(codec).seconds(sent_bytes, codec, ranks)
    return max(0.0, plain_bytes - sent_bytes) / coding_s, coding_s


def _sentence(codec: str, seen: Seen, plain: Seen) -> str:
    sent, before = _bytes_of(seen), _bytes_of(plain)
    ranks = len(seen.run.bytes_sent)
    limit, coding_s = break_even(codec, sent, before, ranks)
    step_s, plain_s, note = seen.run.step_seconds, plain.run.step_seconds, ""
    if " simulated worker" in seen.run.cluster:
        step_s += coding_s
        note = " (the simulated time, plus encoding and decoding as measured on this machine)"
    verdict = "paid off" if step_s < plain_s else "did not pay off"
    times = f"{format_seconds(step_s)} a step instead of {format_seconds(plain_s)}{note}"
    if not limit:
        why = f"it sends {format_bytes(sent)} a step, and {plain.name} {format_bytes(before)}"
        return f"{seen.name} {verdict}: {times}. It saves no bytes here: {why}."
    return (
        f"{seen.name} {verdict}: {times}. It saves {format_bytes(before - sent)} a step of {format_bytes(before)} and "
        f"takes {format_seconds(coding_s)} to encode and decode, so it pays off on links below about "
        f"{format_bandwidth(limit)}."
    )


def _bytes_of(seen: Seen) -> float:
    """Return the bytes that the busiest rank sends in a step."""
    return max(seen.run.bytes_sent, default=0) / max(1, seen.run.steps)


def _codec_of(seen: Seen) -> str:
    strategy = _parsed(seen.run.strategy)
    return next((word for name in _WORDS if (word := getattr(strategy, name, NONE)) != NONE), NONE)


def _key(spec: str) -> object:
    """Return a strategy without its codec, and without the algorithm: a codec may need another one."""
    strategy = _parsed(spec)
    fields = (
        {each.name for each in dataclasses.fields(strategy)} if dataclasses.is_dataclass(strategy) else set()
    )
    changes = {name: NONE for name in _WORDS if name in fields}
    changes |= {"algorithm": "auto"} if "algorithm" in fields else {}
    return repr(dataclasses.replace(strategy, **changes)) if changes else spec  # type: ignore[type-var]


def _parsed(spec: str) -> object:
    try:
        return parse(spec)
    except PacelineError:
        return None  # a run of an older version, or of a package that is not installed
