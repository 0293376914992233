"""The data for the page's scripts, as JSON inside the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from paceline.analysis.comparison.entry import Entry
from paceline.files.writing import finite
from paceline.report.curves import curve, loss_curves
from paceline.report.lanes import pack_lanes, span_limits
from paceline.report.matrices import bytes_matrix, causes_matrix, waits_matrix
from paceline.report.ranks import ranks_with_lanes
from paceline.report.scaling import scaling
from paceline.runs.run import Run
from paceline.runs.summary import changes_of_members
from paceline.trace import Kind, Summary
from paceline.trace.summary import PART_NAMES


def payload(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the data as plain values."""
    runs = [(place, number) for place, entry in enumerate(entries) for number in range(len(entry.runs))]
    summaries = [entries[place].runs[number].trace.summary() for place, number in runs]
    lanes = [ranks_with_lanes(summary) for summary in summaries]
    limits = span_limits(
        [_count(entries[p].runs[n], ranks) for (p, n), ranks in zip(runs, lanes, strict=True)]
    )
    return {
        "kinds": [kind.label for kind in Kind],
        "parts": list(PART_NAMES),
        "entries": [entry.name for entry in entries],
        "runs": [
            _place(entries[place], place, number) | _run(entries[place].runs[number], summary, ranks, limit)
            for (place, number), summary, ranks, limit in zip(runs, summaries, lanes, limits, strict=True)
        ],
        "scaling": scaling(entries),
    }


def script_safe_json(values: object) -> str:
    """Return JSON for a script element. No text in it can end the element or begin a comment."""
    return json.dumps(finite(values), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _place(entry: Entry, place: int, number: int) -> dict[str, Any]:
    stands_for_all = entry.runs[number] is entry.typical
    return {"entry": place, "repeat": number, "repeats": len(entry.runs), "typical": stands_for_all}


def _count(run: Run, ranks: Sequence[int]) -> int:
    shown = set(ranks)
    return sum(len(each) for each in run.trace.spans if each.rank in shown)


def _run(run: Run, summary: Summary, ranks: Sequence[int], limit: int) -> dict[str, Any]:
    told = {rank for each in run.generations for rank in each.lost}
    return {
        "strategy": run.strategy,
        "cluster": run.cluster,
        "seed": run.seed,
        "steps": run.steps,
        "target": run.target,
        "better": run.better,
        "loss": loss_curves(run.history),
        "metric": curve(run.history, lambda record: record.metric),
        "consensus": curve(run.history, lambda record: record.extra.get("consensus")),
        "staleness": sorted(run.staleness.items()),
        "rank_count": len(run.trace.spans),
        "lanes": pack_lanes(run.trace, summary, ranks, limit, run.holds),
        "shares": [round(summary.share(part), 5) for part in PART_NAMES],
        "causes": causes_matrix(run),
        "waits": waits_matrix(summary),
        "bytes": bytes_matrix(run.trace) | {"sent": sum(run.bytes_sent)},
        "lost": [(rank, step) for rank, step in run.lost if rank not in told],
        "changes": [f"{name.capitalize()} {text}." for name, text in changes_of_members(run).items()],
    }
