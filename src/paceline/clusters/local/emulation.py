"""Report of emulated machines in a run, and of gradients that were slower than those machines."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from paceline.clusters.base.outcome import Outcome
from paceline.costs.units import format_seconds
from paceline.trace import COMPUTING, Kind

EMULATED = "emulated"
OVERRUNS = "overruns"
"""Keys of these facts in a run's environment."""

_log = logging.getLogger("paceline")

_LEAST_SHARE = 0.01
"""Smallest share of the computing time that is reported. A smaller share is negligible."""


def note_emulation(words: str, outcomes: Sequence[Outcome], reporter: Outcome) -> None:
    """Record the emulation, and the gradients that exceeded their drawn time, if their share matters."""
    reporter.facts[EMULATED] = words
    overruns = _overruns(outcomes)
    if overruns:
        reporter.facts[OVERRUNS] = overruns
        _log.warning("%s", overruns)


def _overruns(outcomes: Sequence[Outcome]) -> str:
    count = sum(outcome.overruns for outcome in outcomes)
    spans = [outcome.spans.of(*COMPUTING) for outcome in outcomes if outcome.spans is not None]
    computations = sum(len(each) for each in spans)
    emulated_s = sum(float((each["end_s"] - each["start_s"]).sum()) for each in spans)
    excess_s = sum(outcome.overrun_s for outcome in outcomes)
    if not count or excess_s < _LEAST_SHARE * emulated_s:
        return ""
    in_pieces = any((each["kind"] != Kind.COMPUTE).any() for each in spans)
    share = f" ({excess_s / emulated_s:.1%} of the time computed)" if emulated_s else ""
    return (
        f"{count} of {computations} {'passes' if in_pieces else 'gradients'} took longer here than the time drawn "
        f"for them, by {format_seconds(excess_s)} in total{share}: the emulated machines would be faster. "
        "Use longer times in compute, or fewer workers"
    )
