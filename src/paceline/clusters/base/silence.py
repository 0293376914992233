"""How long a rank or its host may be silent before it counts as lost."""

LONGEST_SILENCE_S = 15.0


def patience_s(deadline_s: float) -> float:
    """Return the seconds without a sign of life after which a process or its host counts as lost."""
    return min(LONGEST_SILENCE_S, deadline_s / 2)
