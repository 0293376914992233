"""An HTML page about runs."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from paceline.analysis.comparison.entry import Entry
from paceline.analysis.comparison.proof import Proof
from paceline.analysis.comparison.summary import summary
from paceline.analysis.comparison.title import title as title_of
from paceline.errors import ConfigurationError
from paceline.files.writing import write_file
from paceline.report import assets
from paceline.report.memory import memory_section
from paceline.report.payload import payload, script_safe_json
from paceline.report.sections import figures_table, provenance, run_sentences, summary_list, where_line
from paceline.report.story import story_section
from paceline.runs.run import Run

_DISK_FAILS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors that would also occur with another path on the same disk, so they are not errors of the argument."""


def write_page(
    path: str | Path,
    entries: Sequence[Entry],
    *,
    title: str,
    command: str | None = None,
    story: Sequence[str | Proof] = (),
) -> None:
    """Write the page. `command` reproduces the runs. If None, the page shows the command of each run."""
    write_text(path, page(entries, title=title, command=command, story=story))


def write_text(path: str | Path, text: str) -> None:
    """Write the text of a page. Raise an error if the path cannot be written."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text.encode())
    except OSError as error:
        if error.errno in _DISK_FAILS:
            raise
        remedy = f"use another path ({error.strerror})"
        raise ConfigurationError("path", "must be a writable file", str(path), remedy) from error


def write_run_page(path: str | Path, run: Run) -> None:
    """Write the page of one run."""
    entries = [Entry(name=run.strategy, runs=(run,))]
    write_page(path, entries, title=title_of(entries))


def page(
    entries: Sequence[Entry], *, title: str, command: str | None = None, story: Sequence[str | Proof] = ()
) -> str:
    """Return the page's text. Equal entries give equal text."""
    if not entries:
        raise ConfigurationError("entries", "must be at least one", list(entries), "give a run")
    return Template(assets.template()).substitute(
        policy=escape(assets.content_security_policy()),
        title=escape(title),
        style=assets.style(),
        script=assets.script(),
        where=where_line(entries, title),
        story=story_section(story),
        summary=summary_list([*run_sentences(entries), *summary(entries)]),
        figures=figures_table(entries),
        memory=memory_section(entries),
        provenance=provenance(entries, command),
        payload=script_safe_json(payload(entries)),
    )
