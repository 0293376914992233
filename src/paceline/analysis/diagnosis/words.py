"""A diagnosis in words."""

from __future__ import annotations

import math

from paceline.analysis.diagnosis.diagnose import Diagnosis, SlowRank
from paceline.analysis.diagnosis.peak import Peak
from paceline.costs.units import format_bytes, format_seconds

_WORTH_TELLING = 0.05
"""Smallest fraction of the idle time that is reported."""
_MOSTLY = 0.5
_UNEVEN = 0.1
"""Fraction of a step. Waits of stages that differ by less count as equal."""
_A_CAUSE = 0.1
"""Smallest fraction of the workers' time for which a rank or the messages are named as one more cause."""
_MUCH_MORE = 1.25
"""Smallest ratio to the others' memory that is reported."""
_KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "the optimizer's state",
    "activations": "activations",
    "buffers": "buffers",
}
_OLD_TRACE = "The step time without it is unknown: an older version recorded this trace, without message ids."
_MUCH_BY_LINKS = 0.2
"""Minimum fraction of the idle time that messages cause. Below it, differences between links may be random."""


def sentences(diagnosis: Diagnosis) -> list[str]:
    """Return sentences about the slow rank, its cost, the step time without it, and the largest memory."""
    return time_sentences(diagnosis) + _memory(diagnosis)


def time_sentences(diagnosis: Diagnosis) -> list[str]:
    """The same without memory."""
    said = [
        *_bubble(diagnosis),
        *_waiting_stages(diagnosis),
        *_computing(diagnosis),
        *_blame(diagnosis),
        *_what_if(diagnosis),
        *_other_causes(diagnosis),
        *_links(diagnosis),
    ]
    return said or ["No rank is much slower than the others."]


def _bubble(diagnosis: Diagnosis) -> list[str]:
    stages = diagnosis.stages
    if stages is None or stages.bubble < _WORTH_TELLING:
        return []
    text = f"In a step the stages do not compute for {stages.bubble:.0%} of the time (the bubble)"
    if stages.microbatches == 1:
        return [
            f"{text}: they compute in turn, one batch at a time; pipeline splits the batch into micro-batches."
        ]
    if stages.splits or _has_slow_rank(diagnosis):
        return [f"{text}."]
    return [f"{text}: it is smaller with more micro-batches or another order."]


def _waiting_stages(diagnosis: Diagnosis) -> list[str]:
    """Return which stages wait, if some wait much longer than others."""
    stages = diagnosis.stages
    if stages is None or stages.waits[stages.longest] - stages.waits[stages.shortest] < _UNEVEN:
        return []
    longest, shortest = stages.longest, stages.shortest
    return [
        f"The stages wait unevenly: {diagnosis.who(longest)} for {stages.waits[longest]:.0%} of a step, "
        f"{diagnosis.who(shortest)} for {stages.waits[shortest]:.0%}."
    ]


def _has_slow_rank(diagnosis: Diagnosis) -> bool:
    return diagnosis.compute is not None and diagnosis.compute.is_slow


def _memory(diagnosis: Diagnosis) -> list[str]:
    """Return the rank with the most memory and its content; nothing if every rank holds the whole model."""
    peak = diagnosis.peak
    if peak is None or not any(diagnosis.holds):
        return []
    times = f", {peak.factor:.1f} times the others' median" if peak.factor >= _MUCH_MORE else ""
    held = f"{format_bytes(peak.total_bytes)} at the peak{times}, {kinds(peak)}"
    if times:
        return [f"{_capital(diagnosis.who(peak.rank))} holds the most: {held}."]
    return [f"No rank holds much more memory than the others: at most {held}."]


def kinds(peak: Peak) -> str:
    """Describe the content of the peak: one kind if it is most of the memory, otherwise the two largest kinds."""
    shares = list(peak.shares.items())
    if shares[0][1] > _MOSTLY:
        return f"{shares[0][1]:.0%} of it {_KINDS[shares[0][0]]}"
    return " and ".join(f"{share:.0%} {_KINDS[kind]}" for kind, share in shares[:2])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _computing(diagnosis: Diagnosis) -> list[str]:
    slow = diagnosis.compute
    if slow is None or not slow.is_slow:
        return []
    who = _capital(diagnosis.who(slow.rank))
    if not math.isfinite(slow.seconds):
        return [
            f"{who} is the slowest to compute: all of its computations were cancelled, "
            f"while the others take {format_seconds(slow.others_s)}."
        ]
    work = "a step" if slow.in_pieces else "a gradient"
    text = (
        f"{who} is the slowest to compute: {format_seconds(slow.seconds)} {work}, "
        f"{slow.factor:.1f} times the others' median of {format_seconds(slow.others_s)}"
    )
    if diagnosis.stages is not None:
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
    who = _capital(diagnosis.who(rank))
    return [
        f"{who} causes {share:.0%} of the workers' idle time, although it computes as quickly as the others"
        f"{' in the median' if rank in diagnosis.varying else ''}{_varies(diagnosis, rank)}."
    ]


def _what_if(diagnosis: Diagnosis) -> list[str]:
    slow, without_s = diagnosis.compute, diagnosis.step_without_s
    if slow is None or not slow.is_slow:
        return []
    if without_s is None:
        return [_why_unknown(slow)] if diagnosis.has_causes else [_OLD_TRACE]
    if not diagnosis.improves:
        return [
            "If it computed as quickly as the others, a step would take as long (by a replay of the trace)."
        ]
    return [
        f"If it computed as quickly as the others, a step would take {format_seconds(without_s)} instead of "
        f"{format_seconds(diagnosis.step_s)} (by a replay of the trace)."
    ]


def _other_causes(diagnosis: Diagnosis) -> list[str]:
    """Return the causes of much waiting that have not been named: other ranks, and messages."""
    slow, blame = diagnosis.compute, diagnosis.blame
    worst = slow.rank if slow is not None and slow.is_slow else blame.worst
    named = worst if _has_slow_rank(diagnosis) or blame.share(worst or 0) >= _MOSTLY else None
    ranks = sorted(blame.ranks, key=lambda rank: -blame.ranks[rank])
    said = [
        f"{_capital(diagnosis.who(rank))} causes {blame.share(rank):.0%} of the idle time{_varies(diagnosis, rank)}."
        for rank in ranks
        if rank != named and diagnosis.cost(rank) >= _A_CAUSE
    ]
    if diagnosis.idle_share and diagnosis.idle_share * blame.links_s / (blame.idle_s or 1.0) >= _A_CAUSE:
        said.append(f"Messages in flight cause {blame.links_s / blame.idle_s:.0%} of the idle time.")
    return said


def _varies(diagnosis: Diagnosis, rank: int) -> str:
    if rank not in diagnosis.varying:
        return ""
    median_s, long_s = diagnosis.varying[rank]
    return (
        f": its computations vary, {format_seconds(median_s)} in the median, and "
        f"{format_seconds(long_s)} or more in one of ten"
    )


def _why_unknown(slow: SlowRank) -> str:
    if slow.cancelled_share:
        return "The step time without it is unknown: cancelled computations have no known end."
    return "The step time without it is unknown: the trace has too few computations."


def _links(diagnosis: Diagnosis) -> list[str]:
    link, blame = diagnosis.link, diagnosis.blame
    if link is None or not link.is_slow or blame.links_s < _MUCH_BY_LINKS * blame.idle_s:
        return []
    who = diagnosis.who(link.rank)
    return [f"Messages to and from {who} take {link.factor:.1f} times as long as others of their size."]
