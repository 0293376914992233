"""Explanations of a plan: three sentences, and the difference of two entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from paceline.costs.units import format_bytes, format_seconds
from paceline.planner.bottlenecks import MEMORY, Bottleneck
from paceline.planner.entry import Entry
from paceline.planner.prediction import Parts
from paceline.planner.worth import uncertainty
from paceline.show import markup
from paceline.show.tables import NOTHING, plain_table

if TYPE_CHECKING:
    from paceline.planner.plan import Plan

PARTS = tuple(each.name for each in fields(Parts))
_MOST_REASONS = 4


def summary(plan: Plan) -> list[str]:
    """Return three sentences: what limits the best entry, what the runner-up would need, what was not tried."""
    return [_limited(plan), _runner_up(plan), _not_tried(plan)]


def _limited(plan: Plan) -> str:
    best = plan.best
    text = f"{best} is the best for the goal “{plan.goal}”: {plan.worth(best)}"
    if not plan.bottlenecks:
        return f"{text}."
    first, *rest = plan.bottlenecks
    text += f"; {first.name} {_verb(first)} most of it, {format_seconds(first.seconds)} of each batch"
    text += f" ({first.share:.0%})"
    if rest:
        second = rest[0]
        text += f", followed by {second.name} with {format_seconds(second.seconds)} ({second.share:.0%})"
    return f"{text}."


def _verb(one: Bottleneck) -> str:
    return "cost" if one.name.startswith("the ") and one.name.endswith("s") else "costs"


def _runner_up(plan: Plan) -> str:
    best = plan.best
    other = runner_up(plan)
    if other is None:
        return "No other configuration can be compared with it."
    value, least = plan.value(other), plan.value(best)
    if value < least and other.workers > best.workers:
        return (
            f"{other} would need {1 - value / least:.1%} less ({plan.worth(other)}), which is within the uncertainty "
            f"of the predictions ({uncertainty(other, best):.0%}), so fewer workers are preferred."
        )
    behind = f"The runner-up is {other}: {plan.worth(other)}, {_more(value, least)} more"
    if plan.goal == "memory":
        return f"{behind}."
    batch_s = other.batch_seconds * least / value if value else 0.0
    gap_s = other.batch_seconds - batch_s
    text = f"{behind}; to win, its batch would have to take {format_seconds(batch_s)} instead of "
    text += format_seconds(other.batch_seconds)
    scale = other.batch_seconds / other.prediction.step_seconds
    parts = {name: getattr(other.prediction.parts, name) * scale for name in PARTS}
    name = max((part for part in PARTS if part != "compute"), key=lambda part: parts[part])
    if parts[name] > gap_s:
        return (
            f"{text}, for example with {format_seconds(parts[name] - gap_s)} instead of "
            f"{format_seconds(parts[name])} of “{name}”."
        )
    return f"{text}, but no part except compute is that long."


def _more(value: float, least: float) -> str:
    share = value / least - 1 if least else 0.0
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def runner_up(plan: Plan) -> Entry | None:
    """Return the fastest entry if it has more workers than the best one, else the best one of another strategy.

    If there is no other strategy, return the second entry. None if there is only one.
    """
    best, least = plan.best, plan.value(plan.best)
    ranked = [entry for entry in plan.ranked if entry is not best]
    faster = [entry for entry in ranked if plan.value(entry) < least and entry.workers > best.workers]
    others = [entry for entry in ranked if entry.family != best.family and plan.value(entry) >= least]
    return next(iter(faster or others or ranked), None)


def _not_tried(plan: Plan) -> str:
    text = f"{plan.tried} configurations were predicted"
    if plan.rejected:
        least = min(plan.rejected, key=lambda entry: entry.misses_bytes)
        text += (
            f", of which {len(plan.rejected)} do not fit (the nearest, {least}, by "
            f"{format_bytes(least.misses_bytes)})"
        )
    reasons = [f"{name} ({reason})" for name, reason in plan.refused.items()]
    shown, left = reasons[:_MOST_REASONS], len(reasons) - _MOST_REASONS
    encoded = [entry for entry in plan.entries if entry.codec is not None]
    text += "; not tried: combinations of several changed parameters, other precisions"
    text += "" if encoded else ", codecs"
    text += f", {', '.join(shown)}" if shown else ""
    text += f" and {left} more strategies (see plan.refused)" if left > 0 else ""
    if plan.skipped:
        text += f"; {plan.skipped} slower ones were not simulated to the target"
    if encoded:
        fastest = min(encoded, key=lambda entry: entry.batch_seconds)
        text += (
            f"; the fastest with a codec is {fastest} ({format_seconds(fastest.batch_seconds)} for a batch): "
        )
        text += "the time of encoding is not predicted"
        text += "" if plan.aims else ", and the effect of codecs on learning is not estimated"
    if plan.was_cut:
        text += "; the search ended at its limit"
    if plan.cluster.note:
        text += f"; gradients and links: {plan.cluster.note}"
    return f"{text}."


@dataclass(frozen=True, slots=True, repr=False)
class Difference:
    """Two entries of a plan, term by term."""

    header: Sequence[str]
    cells: Sequence[Sequence[str]]
    sentence: str

    def __str__(self) -> str:
        return f"{plain_table(self.header, self.cells)}\n\n{self.sentence}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return markup.table(self.header, self.cells) + markup.items([self.sentence])


def difference(a: Entry, b: Entry) -> Difference:
    """Compare the parts of a batch, memory, cost and time to the target."""
    parts = {f"{name}, of a batch": (_part(a, name), _part(b, name)) for name in PARTS}
    rows = [_row(name, *pair, format_seconds) for name, pair in parts.items()]
    rows.append(_row("batch", a.batch_seconds, b.batch_seconds, format_seconds))
    rows.append(_row("memory", a.prediction.memory_bytes, b.prediction.memory_bytes, format_bytes))
    if a.target is not None and b.target is not None:
        rows.append(_row("batches to the target", a.target.batches, b.target.batches, lambda x: f"{x:.1f}"))
        rows.append(_row("time to the target", a.target.seconds, b.target.seconds, format_seconds))
    if a.cost is not None and b.cost is not None:
        rows.append(_row("cost", a.cost, b.cost, lambda x: f"{x:.4g}"))
    name, (one, other) = max(parts.items(), key=lambda each: abs(each[1][0] - each[1][1]))
    gap_s = a.batch_seconds - b.batch_seconds
    fast, slow = (a, b) if gap_s < 0 else (b, a)
    sentence = (
        f"A batch of {fast} takes {format_seconds(abs(gap_s))} less than one of {slow}; the largest difference is in "
        f"“{name.partition(',')[0]}”: {format_seconds(one)} and {format_seconds(other)}."
    )
    return Difference(("", str(a), str(b), "difference"), rows, sentence)


def _part(entry: Entry, name: str) -> float:
    scale = entry.batch_seconds / entry.prediction.step_seconds
    return float(getattr(entry.prediction.parts, name)) * scale


def _row(name: str, one: float, other: float, text: object) -> list[str]:
    form = text if callable(text) else str
    more = f"{one / other - 1:+.1%}" if other else NOTHING
    return [name, form(one), form(other), more]


__all__ = ["MEMORY", "PARTS", "Difference", "difference", "runner_up", "summary"]
