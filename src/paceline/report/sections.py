"""The text and tables of the page, created as markup when the page is written.

All user-supplied text passes through `escape` here. The scripts receive text as JSON and create text nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from paceline.analysis.comparison.entry import Entry
from paceline.analysis.comparison.table import NOTHING, cells, columns, rows
from paceline.costs.units import format_seconds
from paceline.report.scaling import worker_count
from paceline.runs.run import Run

_FACTS = {
    "paceline": "Paceline",
    "python": "Python",
    "torch": "PyTorch",
    "numpy": "NumPy",
    "system": "system",
    "processor": "processor",
    "cores": "cores",
}


def summary_list(sentences: Sequence[str]) -> str:
    """Return the sentences as markup. The first one is the lead."""
    first, rest = sentences[:1], sentences[1:]
    lead = "".join(f'<p class="lead">{escape(sentence)}</p>' for sentence in first)
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in rest)
    return lead + (f"<ul>{items}</ul>" if items else "")


def run_sentences(entries: Sequence[Entry]) -> list[str]:
    """Return a sentence on the result if the page has a single run, which cannot be compared."""
    if len(entries) > 1 or not entries[0].runs:
        return []
    run = entries[0].typical
    text = f"{run.steps} steps took {format_seconds(run.seconds)}"
    text += f", {format_seconds(run.step_seconds)} each" if run.steps else ""
    if run.target is not None:
        reached_s = run.seconds_to_target
        when = "was not reached" if reached_s is None else f"was reached after {format_seconds(reached_s)}"
        text += f"; the target of {run.target:g} {when}"
    return [text + (f"; the metric ended at {run.metric:.4f}." if run.metric is not None else ".")]


def where_line(entries: Sequence[Entry], title: str) -> str:
    """Return the cluster of most runs; empty if it is in the title."""
    clusters = Counter(run.cluster for run in _runs(entries))
    usual = clusters.most_common(1)[0][0] if clusters else ""
    if usual in title:
        return ""
    return escape(usual if len(clusters) == 1 else f"{usual} (most runs; the others are listed below)")


def figures_table(entries: Sequence[Entry]) -> str:
    """Return the comparison table, with the cells of the command line. The row of a failed entry has the reason."""
    table = rows(entries)
    # The reason of a failure is a sentence, so it spans all columns.
    shown = [place for place, title in enumerate(columns(table)) if title != "failed"]
    head = _pick(columns(table), shown)
    body = []
    for place, row in enumerate(table):
        name = _name_cell(place, row.name)
        if row.error is not None:
            across = len(head) - 1
            body.append(
                f'<tr class="failed">{name}<td colspan="{across}">failed: {escape(row.error)}</td></tr>'
            )
        else:
            figures = _pick(cells(row, table), shown)[1:]
            body.append(f"<tr>{name}{''.join(_figure(text) for text in figures)}</tr>")
    heads = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def provenance(entries: Sequence[Entry], command: str | None) -> str:
    """Return everything needed to repeat the runs: commands, settings, versions and machines."""
    runs = _runs(entries)
    commands = (
        [command] if command else list(dict.fromkeys(run.environment.get("command", "") for run in runs))
    )
    blocks = "".join(f"<pre><code>{escape(each)}</code></pre>" for each in commands if each)
    return blocks + _runs_by_cluster(entries) + _machines(runs)


def _runs(entries: Iterable[Entry]) -> list[Run]:
    return [run for entry in entries for run in entry.runs]


def _pick(texts: Sequence[str], places: Sequence[int]) -> list[str]:
    return [texts[place] for place in places]


def _name_cell(place: int, name: str) -> str:
    return f'<th scope="row"><span class="swatch" data-entry="{place}"></span>{escape(name)}</th>'


def _figure(text: str) -> str:
    empty = ' class="nothing"' if text == NOTHING else ""
    return f"<td{empty}>{escape(text)}</td>"


def _runs_by_cluster(entries: Sequence[Entry]) -> str:
    """Return a table of the runs on each cluster. Repeats share a row."""
    clusters: dict[str, dict[str, list[Run]]] = {}
    for run in _runs(entries):
        clusters.setdefault(run.cluster, {}).setdefault(run.strategy, []).append(run)
    return "".join(
        f"<h3>{escape(cluster)}</h3>{_runs_table(cluster, strategies)}"
        for cluster, strategies in clusters.items()
    )


def _runs_table(cluster: str, strategies: Mapping[str, Sequence[Run]]) -> str:
    heads = "".join(f'<th scope="col">{title}</th>' for title in ("strategy", "seed", "steps", "ranks"))
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        f"<td>{_distinct(run.seed for run in runs)}</td><td>{_distinct(run.steps for run in runs)}</td>"
        f"<td>{_distinct(map(_ranks, runs))}</td></tr>"
        for name, runs in strategies.items()
    )
    label = escape(f"Runs on {cluster}")
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll words" tabindex="0" role="region" aria-label="{label}">{table}</div>'


def _distinct(values: Iterable[object]) -> str:
    return escape(", ".join(map(str, dict.fromkeys(values))))


def _ranks(run: Run) -> str:
    workers = worker_count(run)
    servers = len(run.trace.spans) - workers
    text = f"{workers} worker{'s' * (workers > 1)}"
    return f"{text}, {servers} server{'s' * (servers > 1)}" if servers else text


def _machines(runs: Sequence[Run]) -> str:
    """Return versions and machine, once for all runs that share them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        facts = tuple(run.environment.get(name, "") for name in _FACTS)
        groups.setdefault(facts, []).append(run.strategy)
    return "".join(_machine(facts, names if len(groups) > 1 else []) for facts, names in groups.items())


def _machine(facts: Sequence[str], names: Sequence[str]) -> str:
    of = f"<p>{escape(', '.join(dict.fromkeys(names)))}:</p>" if names else ""
    if not any(facts):
        return f"{of}<p>Versions and machine were not recorded.</p>"
    pairs = zip(_FACTS.values(), facts, strict=True)
    items = "".join(f"<div><dt>{title}</dt><dd>{escape(fact)}</dd></div>" for title, fact in pairs if fact)
    return f'{of}<dl class="facts">{items}</dl>'
