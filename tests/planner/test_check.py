"""A plan, checked by local workers."""

from refusals import refused
from small_plans import cluster, mlp

import paceline as pl


def test_the_best_entries_are_run_and_compared():
    plan = pl.plan(mlp(), cluster(2), strategies=["map-reduce"], workers=2)
    found = plan.check(top=1, steps=3)
    (row,) = found.rows
    assert row.entry is plan.best
    assert row.measured_s is not None
    assert row.error is not None
    assert plan.checked is found
    assert plan.best.strategy in str(plan).rpartition("measured")[2]


def test_more_processes_than_this_machine_can_run_are_refused():
    plan = pl.plan(mlp(), cluster(40), strategies=["map-reduce"], workers=40)
    with refused("workers", 41):
        plan.check()
