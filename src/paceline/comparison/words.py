"""What a comparison says, in words taken from its figures."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.clusters.local.emulation import EMULATED, OVERRUNS
from paceline.comparison.entry import YARDSTICK, Entry, what_differs
from paceline.comparison.pieces import about_bubbles, about_memory
from paceline.comparison.reason import Seen, reason
from paceline.comparison.table import Row, brief, rows
from paceline.comparison.verdict import order, within_spread
from paceline.costs.units import format_seconds
from paceline.diagnosis.diagnose import diagnose
from paceline.diagnosis.words import sentences, time_sentences
from paceline.metrics import LOWER

__all__ = ["summary"]


def summary(entries: Sequence[Entry]) -> list[str]:
    """Sentences: who wins and why, who is slow and what that costs, who failed. The most important first."""
    table = rows(entries)
    looked = {
        row.name: Seen(row, entry.typical, diagnose(entry.typical))
        for entry, row in zip(entries, table, strict=True)
        if entry.runs
    }
    differing = what_differs(entries)
    if differing:
        said = [f"Nobody wins: these runs did not learn the same: {'; '.join(differing)}."]
        said += _details(list(looked.values()))
    elif len(looked) > 1:
        ranked = [looked.pop(row.name) for row in order(table)]
        rest = list(looked.values())
        said = _verdict(ranked, rest, table) + _details([*ranked, *rest])
    else:
        said = [sentence for seen in looked.values() for sentence in sentences(seen.diagnosis)]
    said += _missed(table)
    if any(row.speed_up is not None for row in table[1:]):
        said.append(f"Speed-up is over {YARDSTICK}: one worker, which takes the whole batch of every step.")
    said += _emulated(entries)
    return said + [f"{row.name} failed: {brief(row.error)}" for row in table if row.error is not None]


def _emulated(entries: Sequence[Entry]) -> list[str]:
    """What was not real, and whose gradients were slower than the machines that they stand for."""
    real = "Processes, messages and mathematics are real; their time is that of other machines."
    said = [f"Emulated: {words}. {real}" for words in dict.fromkeys(_facts(entries, EMULATED).values())]
    return said + [f"{name}: {words}." for name, words in _facts(entries, OVERRUNS).items()]


def _facts(entries: Sequence[Entry], fact: str) -> dict[str, str]:
    """What the runs of each entry have under this name, if any; the last of its runs."""
    return {
        entry.name: run.environment[fact]
        for entry in entries
        for run in entry.runs
        if fact in run.environment
    }


def _verdict(ranked: Sequence[Seen], rest: Sequence[Seen], table: Sequence[Row]) -> list[str]:
    if not ranked:
        return [_nearest(table)]
    said = [_winner(ranked)]
    why = reason(ranked[0], [*ranked[1:], *rest])
    said += [why] if why else []
    if len(ranked) > 1 and within_spread(ranked[0].row, ranked[1].row):
        said.append(
            f"That {ranked[0].name} is ahead of {ranked[1].name} may be chance: their repeats overlap."
        )
    return said


def _winner(ranked: Sequence[Seen]) -> str:
    first, second = ranked[0].row, ranked[1].row if len(ranked) > 1 else None
    if first.target is None:
        text = f"{first.name} is the quickest: {first.samples_per_s:,.0f} samples a second"
        lead = (first.samples_per_s or 0.0) / (second.samples_per_s or 1.0) if second else 0.0
        behind = "as many"
    else:
        text = f"{first.name} wins: it reaches {first.target:g} after {format_seconds(first.seconds_to_target or 0.0)}"
        lead = (second.seconds_to_target or 0.0) / (first.seconds_to_target or 1.0) if second else 0.0
        behind = "as soon"
    return (
        f"{text}, {lead:.2f} times {behind} as {second.name}, the next."
        if second
        else f"{text}, and nobody else."
    )


def _nearest(table: Sequence[Row]) -> str:
    tried = [row for row in table if row.metric is not None and row.target is not None]
    if not tried:
        return "Nobody wins: there is nothing to judge by."
    nearest = min if tried[0].better == LOWER else max
    best = nearest(tried, key=lambda row: row.metric or 0.0)
    return f"Nobody reaches {best.target:g}; {best.name} comes nearest, with {best.metric:.4f}."


def _details(looked: Sequence[Seen]) -> list[str]:
    return [*_slow_rank(looked), *about_bubbles(looked), *about_memory(looked)]


def _slow_rank(looked: Sequence[Seen]) -> list[str]:
    """The diagnosis of the entry that suffers most, and what a step of each would take without the slow rank."""
    slow = [seen for seen in looked if seen.diagnosis.compute is not None and seen.diagnosis.compute.is_slow]
    if not slow:
        return []
    worst = max(
        slow, key=lambda seen: seen.waits_for(seen.diagnosis.compute.rank if seen.diagnosis.compute else 0)
    )
    said = [f"In {worst.name}: {' '.join(time_sentences(worst.diagnosis))}"]
    others = [
        f"{seen.name} {format_seconds(found.step_without_s)} instead of {format_seconds(found.step_s)}"
        for seen in slow
        if (found := seen.diagnosis).step_without_s is not None and seen is not worst
    ]
    return said + ([f"A step of the others would then take: {'; '.join(others)}."] if others else [])


def _missed(table: Sequence[Row]) -> list[str]:
    """Who has a target, did not reach it, and is not told of yet."""
    missed = [row for row in table if row.target is not None and row.seconds_to_target is None]
    if len(missed) == sum(row.target is not None for row in table):
        return []
    return [
        f"{row.name} does not reach {row.target:g} in {row.steps} steps"
        + ("." if row.metric is None else f"; it ends at {row.metric:.4f}.")
        for row in missed
    ]
