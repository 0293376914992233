"""The title of a page: task, cluster and winner in words."""

import dataclasses

from chosen_runs import entry, run_of

from paceline.analysis.comparison.entry import Entry
from paceline.analysis.comparison.table import rows
from paceline.analysis.comparison.title import title
from paceline.analysis.comparison.verdict import order


def test_a_comparison_names_the_task_the_cluster_and_the_winner():
    entries = [entry(run_of("sync")), entry(run_of("k-sync:k=3"))]
    best = order(rows(entries))[0]
    ends = "is the fastest" if best.target is None else "wins"
    assert title(entries, "digits.py") == f"digits.py on 4 simulated workers: {best.name} {ends}"


def test_one_run_is_named_by_its_strategy():
    assert title([entry(run_of("sync"))]) == "sync on 4 simulated workers"


def test_settings_of_the_cluster_are_left_out():
    run = dataclasses.replace(
        run_of("sync"), cluster="2 local workers (emulated: compute 5 ms, link x), threads 1"
    )
    assert title([entry(run)]) == "sync on 2 local workers"


def test_runs_of_different_tasks_have_no_winner():
    run = run_of("sync")
    other = dataclasses.replace(run, fingerprint=run.fingerprint | {"samples": "7"})
    assert title([entry(run), Entry(name="other", runs=(other,))]).endswith(": no winner")
