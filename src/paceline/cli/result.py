"""What a run came to, in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.run import Run

__all__ = ["result_text"]


def result_text(run: Run) -> str:
    """Strategy, seconds, steps, loss, metric, target and shares of time, one a line; then who is slow."""
    from paceline.run_words import aligned, as_lines

    return "\n".join([aligned(as_lines(run)), *_diagnosis(run)])


def _diagnosis(run: Run) -> list[str]:
    """Who is slow. Not of a run in which one rank computes alone."""
    from paceline.diagnosis.diagnose import diagnose
    from paceline.diagnosis.words import sentences

    found = diagnose(run)
    return ["", *sentences(found)] if found.compute is not None else []
