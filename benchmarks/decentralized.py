"""Time to 97 % on the digits over a slow link: all-reduce against peers that communicate less.

The experiment is the one of examples/topologies.py: eight peers, a model of one megabyte, 100 Mbit/s and 5 ms, the same
batches, optimizer and seed for all. It is simulated first, then run in processes over an emulated link. Both take the
same steps to the same weights, so predictions differ only in their seconds. The simulation gets one measurement of this
machine: the time of a gradient and an update while eight peers share its cores, without communication.
"""

from __future__ import annotations

import itertools
import math
import statistics

import paceline as pl
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from examples.topologies import PEERS, SLOW, task, train

ALL_REDUCE = "all-reduce:algorithm=ring"
OTHERS = ("decentralized:topology=one-peer-exponential", "decentralized:topology=ring", "local-sgd:period=8")
ROUNDS = 5
LIMIT_S = 150.0
ALONE = 60
"""Steps measured without communication."""
EPOCHS = 20
"""A run that has not reached the target by then is ended."""

Times = dict[str, list[float]]


def measure() -> Result:
    predicted, measured = _take_turns()
    result = Result(
        title=f"seconds to 97 % of the digits, {PEERS} peers, {SLOW}", unit="s", rows=[], goals=[]
    )
    reached = [name for name in measured if math.isfinite(sum(measured[name]))]
    rows = {name: Row(what=f"{name}, emulated", rounds=measured[name]) for name in reached}
    for name, row in rows.items():
        forecast = Row(what=f"{name}, simulated", rounds=predicted[name])
        result.rows += [row, forecast]
        off = [max(ratio, 1 / ratio) for ratio in compare(forecast, row)]
        result.goals.append(
            Goal(what=f"{name}: prediction is wrong by a factor of", rounds=off, at_most=1.15)
        )
    result.unmeasured += [
        f"{name}: not at the target within {EPOCHS} epochs" for name in measured if name not in rows
    ]
    if ALL_REDUCE in rows and len(rows) > 1:
        result.goals = [*_contests(rows), *result.goals]
    return result


def _contests(rows: dict[str, Row]) -> list[Goal]:
    """Return all-reduce against each of the others, best first. The goal applies to the best."""
    others = sorted((name for name in rows if name != ALL_REDUCE), key=lambda name: rows[name].median)
    return [
        Goal(
            what=f"{ALL_REDUCE} / {name}",
            rounds=compare(rows[ALL_REDUCE], rows[name]),
            at_least=None if place else 1.3,
        )
        for place, name in enumerate(others)
    ]


def _take_turns() -> tuple[Times, Times]:
    """Return the seconds to the target, simulated and in processes. Each round has its own seed."""
    names = (ALL_REDUCE, *OTHERS)
    predicted: Times = {name: [] for name in names}
    measured: Times = {name: [] for name in names}
    for number in rounds(ROUNDS, LIMIT_S):
        simulated = pl.Simulated(workers=PEERS, link=SLOW, compute=pl.times.Constant(_step_alone_s()))
        start = number % len(names)
        for name in names[start:] + names[:start]:
            predicted[name].append(_seconds(name, simulated, number))
            measured[name].append(_seconds(name, pl.Local(workers=PEERS, link=SLOW), number))
    return predicted, measured


def _step_alone_s() -> float:
    """Return the seconds of a peer's gradient and update while all peers compute, without communication."""
    run = pl.train(task, f"local-sgd:period={2 * ALONE}", pl.Local(workers=PEERS, link=SLOW), steps=ALONE)
    ends_s = [record.seconds for record in run.history[ALONE // 4 :]]  # the first steps warm up
    return statistics.median(after - before for before, after in itertools.pairwise(ends_s))


def _seconds(name: str, cluster: pl.Local | pl.Simulated, seed: int) -> float:
    """Return the seconds to the target; infinite if it was not reached."""
    found = train(name, cluster, epochs=EPOCHS, seed=seed, stop=True).seconds_to_target
    return math.inf if found is None else found
