"""A diagnosis in words."""

from __future__ import annotations

import math

from paceline.costs.units import format_seconds
from paceline.diagnosis.diagnose import Diagnosis, SlowRank

__all__ = ["sentences"]

_WORTH_TELLING = 0.05
"""Of the idle time: less is not worth a sentence."""
_MOSTLY = 0.5
_MUCH_BY_LINKS = 0.2
"""Of the idle time: below, the times of messages vary by chance, and who is the slowest says nothing."""


def sentences(diagnosis: Diagnosis) -> list[str]:
    """Who is slow, what that costs, and what a step would take without it; a sentence each."""
    said = [
        *_bubble(diagnosis),
        *_computing(diagnosis),
        *_blame(diagnosis),
        *_what_if(diagnosis),
        *_links(diagnosis),
    ]
    return said or ["No rank is much slower than the others."]


def _bubble(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.bubble is None or diagnosis.bubble < _WORTH_TELLING:
        return []
    return [
        f"In a step the stages do not compute for {diagnosis.bubble:.0%} of the time (the bubble): "
        "more micro-batches, or another order, make it smaller."
    ]


def _computing(diagnosis: Diagnosis) -> list[str]:
    slow = diagnosis.compute
    if slow is None or not slow.is_slow:
        return []
    if not math.isfinite(slow.seconds):
        return [
            f"Rank {slow.rank} is the slowest to compute: all of its computations were cancelled, "
            f"while the others take {format_seconds(slow.others_s)}."
        ]
    work = "a step" if slow.in_pieces else "a gradient"
    text = (
        f"Rank {slow.rank} is the slowest to compute: {format_seconds(slow.seconds)} {work}, "
        f"{slow.factor:.1f} times the others' median of {format_seconds(slow.others_s)}"
    )
    if diagnosis.bubble is not None:
        return [f"{text}; cuts=… can give its stage fewer layers."]
    cancelled = f"; {slow.cancelled_share:.0%} of its computations were cancelled"
    return [f"{text}{cancelled if slow.cancelled_share else ''}."]


def _blame(diagnosis: Diagnosis) -> list[str]:
    blame, slow = diagnosis.blame, diagnosis.compute
    rank = slow.rank if slow is not None and slow.is_slow else blame.worst
    if rank is None:
        return []
    share = blame.share(rank)
    if slow is not None and slow.is_slow:
        if share * diagnosis.idle_share < _WORTH_TELLING / 5:
            return ["The others hardly wait for it."]
        return [
            f"It causes {share:.0%} of the workers' idle time, which is {diagnosis.idle_share:.0%} of all their time."
        ]
    if share < _MOSTLY or diagnosis.idle_share < _WORTH_TELLING:
        return []
    return [
        f"Rank {rank} causes {share:.0%} of the workers' idle time, though it computes as quickly as the others."
    ]


def _what_if(diagnosis: Diagnosis) -> list[str]:
    slow, without_s = diagnosis.compute, diagnosis.step_without_s
    if slow is None or not slow.is_slow:
        return []
    if without_s is None:
        return [_why_unknown(slow)]
    return [
        f"If it computed as quickly as the others, a step would take {format_seconds(without_s)} instead of "
        f"{format_seconds(diagnosis.step_s)} (by a replay of the trace)."
    ]


def _why_unknown(slow: SlowRank) -> str:
    if slow.cancelled_share:
        return "What a step would take without it, the trace cannot tell: cancelled computations have no known end."
    return "What a step would take without it, the trace does not tell: it has too few computations."


def _links(diagnosis: Diagnosis) -> list[str]:
    link, blame = diagnosis.link, diagnosis.blame
    if link is None or not link.is_slow or blame.links_s < _MUCH_BY_LINKS * blame.idle_s:
        return []
    return [
        f"Messages to and from rank {link.rank} travel {link.factor:.1f} times as long as others of their size."
    ]
