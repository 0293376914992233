"""The summary of a comparison: sentences derived from its figures."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.analysis.comparison.compression import about_codecs
from paceline.analysis.comparison.entry import YARDSTICK, Entry, what_differs
from paceline.analysis.comparison.pieces import about_bubbles, about_memory
from paceline.analysis.comparison.reason import Seen, reason
from paceline.analysis.comparison.table import Row, brief, rows
from paceline.analysis.comparison.verdict import order, within_spread
from paceline.analysis.diagnosis.diagnose import diagnose
from paceline.analysis.diagnosis.words import sentences, time_sentences
from paceline.clusters.local.emulation import EMULATED, OVERRUNS
from paceline.costs.units import format_seconds
from paceline.task.metrics import LOWER


def summary(entries: Sequence[Entry]) -> list[str]:
    """Return sentences: the winner and the reason, the slow rank and its cost, failures. Most important first."""
    table = rows(entries)
    looked = {
        row.name: Seen(row, entry.typical, diagnose(entry.typical))
        for entry, row in zip(entries, table, strict=True)
        if entry.runs
    }
    differing = what_differs(entries)
    if differing:
        said = [f"No winner: these runs trained different tasks: {'; '.join(differing)}."]
        said += _details(list(looked.values()))
    elif len(looked) > 1:
        ranked = [looked.pop(row.name) for row in order(table)]
        rest = list(looked.values())
        said = _verdict(ranked, rest, table) + _details([*ranked, *rest])
    else:
        said = [sentence for seen in looked.values() for sentence in sentences(seen.diagnosis)]
    said += _missed(table)
    if any(row.speed_up is not None for row in table[1:]):
        said.append(
            f"Speed-up is relative to {YARDSTICK}: one worker that processes the whole batch of every step."
        )
    said += _emulated(entries)
    return said + [f"{row.name} failed: {brief(row.error)}" for row in table if row.error is not None]


def _emulated(entries: Sequence[Entry]) -> list[str]:
    """Return what was emulated, and which gradients were slower than on the emulated machines."""
    real = "Processes, messages and computation are real; their times are emulated."
    said = [f"Emulated: {words}. {real}" for words in dict.fromkeys(_facts(entries, EMULATED).values())]
    return said + [f"{name}: {words}." for name, words in _facts(entries, OVERRUNS).items()]


def _facts(entries: Sequence[Entry], fact: str) -> dict[str, str]:
    """Return the environment value of this name for each entry that has one, from its last run."""
    return {
        entry.name: run.environment[fact]
        for entry in entries
        for run in entry.runs
        if fact in run.environment
    }


def _verdict(ranked: Sequence[Seen], rest: Sequence[Seen], table: Sequence[Row]) -> list[str]:
    if not ranked:
        return [_nearest(table)]
    said = [_winner(ranked), *_separate(ranked)]
    why = reason(ranked[0], [*ranked[1:], *rest])
    said += [why] if why else []
    if len(ranked) > 1 and within_spread(ranked[0].row, ranked[1].row):
        said.append(f"{ranked[0].name} may be ahead of {ranked[1].name} by chance: their repeats overlap.")
    return said


def _winner(ranked: Sequence[Seen]) -> str:
    first, second = ranked[0].row, ranked[1].row if len(ranked) > 1 else None
    if first.target is None:
        text = f"{first.name} is the fastest: {first.samples_per_s:,.0f} samples a second"
        lead = (first.samples_per_s or 0.0) / (second.samples_per_s or 1.0) if second else 0.0
        behind = "as many"
    else:
        text = f"{first.name} wins: it reaches {first.target:g} after {format_seconds(first.seconds_to_target or 0.0)}"
        lead = (second.seconds_to_target or 0.0) / (first.seconds_to_target or 1.0) if second else 0.0
        behind = "as soon"
    return (
        f"{text}, {lead:.2f} times {behind} as {second.name}, the second best."
        if second
        else f"{text}; no other strategy does."
    )


def _separate(ranked: Sequence[Seen]) -> list[str]:
    return [
        f"{seen.name} never communicated: its workers trained separate models, and the run's model is their mean. Its "
        "speed is not comparable."
        for seen in ranked
        if seen.never_communicated
    ]


def _nearest(table: Sequence[Row]) -> str:
    tried = [row for row in table if row.metric is not None and row.target is not None]
    if not tried:
        return "No winner: there is no figure to compare."
    nearest = min if tried[0].better == LOWER else max
    best = nearest(tried, key=lambda row: row.metric or 0.0)
    return f"No strategy reaches {best.target:g}; {best.name} comes closest, with {best.metric:.4f}."


def _details(looked: Sequence[Seen]) -> list[str]:
    return [*_slow_rank(looked), *about_codecs(looked), *about_bubbles(looked), *about_memory(looked)]


def _slow_rank(looked: Sequence[Seen]) -> list[str]:
    """Return the diagnosis of the most affected entry, and the step time of each entry without the slow rank."""
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
        if (found := seen.diagnosis).improves and found.step_without_s is not None and seen is not worst
    ]
    return said + ([f"Without it, a step of the others would take: {'; '.join(others)}."] if others else [])


def _missed(table: Sequence[Row]) -> list[str]:
    """Return the strategies that did not reach their target and have not been reported yet."""
    missed = [row for row in table if row.target is not None and row.seconds_to_target is None]
    if len(missed) == sum(row.target is not None for row in table):
        return []
    return [
        f"{row.name} does not reach {row.target:g} in {row.steps} steps"
        + ("." if row.metric is None else f"; it ends at {row.metric:.4f}.")
        for row in missed
    ]
