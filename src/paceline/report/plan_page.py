"""The HTML page of a plan. It has no scripts: its charts are SVG."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from paceline.planner.check import Check
from paceline.planner.plan import Plan
from paceline.report.cluster_picture import cluster_picture
from paceline.report.page import write_text
from paceline.report.plan_charts import breakable, frontier, predicted_and_measured, speed_up, stacked_bars
from paceline.report.sections import summary_list

_STYLES = ("colours.css", "page.css", "plan.css")
_MOST_ROWS = 30


def write_plan_page(path: str | Path, plan: Plan, *, title: str | None, command: str | None) -> None:
    """Write the page. `command` is the command that made the plan; None to leave it out."""
    write_text(path, plan_page(plan, title=title, command=command))


def plan_page(plan: Plan, *, title: str | None = None, command: str | None = None) -> str:
    """Return the page's text. Equal plans give equal text."""
    style = "\n".join(_read(name) for name in _STYLES)
    heading = title or f"Plan: {plan.best}"
    costs = "cost" if plan.best.cost is not None else ""
    return Template(_read("plan.html")).substitute(
        policy=escape(_policy(style)),
        title=escape(heading),
        style=style,
        where=escape(f"Goal: {plan.goal}. {plan.cluster.simulated}"),
        summary=summary_list(plan.summary),
        table=_table(plan),
        bars=stacked_bars(plan.ranked),
        memory=frontier(plan.ranked, plan.best, "memory"),
        cost=f"<figure><figcaption>Time against cost</figcaption>{frontier(plan.ranked, plan.best, costs)}</figure>"
        if costs
        else "",
        speed_up=speed_up(plan),
        cluster=cluster_picture(plan),
        checked=_checked(plan.checked),
        command="" if command is None else f"<pre><code>{escape(command)}</code></pre>",
    )


def _table(plan: Plan) -> str:
    table = plan.table
    left = len(table) - _MOST_ROWS
    more = f'<p class="note">{left:,} more configurations are left out.</p>' if left > 0 else ""
    label = 'tabindex="0" role="region" aria-label="Ranked configurations"'
    return f'<div class="scroll figures" {label}>{_rows(table.header, table.cells[:_MOST_ROWS])}</div>{more}'


def _rows(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return a table. The first cell of each row is a strategy."""
    heads = "".join(f'<th scope="col">{escape(title)}</th>' for title in header)
    rows = "".join(
        f'<tr><th scope="row">{breakable(name)}</th>{"".join(f"<td>{escape(text)}</td>" for text in rest)}</tr>'
        for name, *rest in cells
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _checked(check: Check | None) -> str:
    if check is None:
        return ""
    return (
        '<section aria-labelledby="checked-title"><h2 id="checked-title">Predicted and measured</h2>'
        f"{predicted_and_measured(check)}"
        '<div class="scroll figures" tabindex="0" role="region" aria-label="Predicted and measured times">'
        f"{_rows(check.header, check.cells)}</div>"
        f'<p class="note">{escape(check.what)}, on {escape(check.cluster)}.</p>{summary_list(check.summary)}</section>'
    )


def _policy(style: str) -> str:
    """Return a policy that loads and runs nothing but the page's own style sheet."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _read(name: str) -> str:
    return (files("paceline.report") / "assets" / name).read_text(encoding="utf-8")
