"""Time to 97 % on the digits if one of 4 workers is 4 times as slow: DDP against each strategy.

The experiment is the one of examples/stragglers.py: the same model, batches, seed, optimizer and slowdown for all. The
goal applies at the task's own learning rate, which suits DDP. At that rate stale gradients diverge, so everything is
also measured at a lower rate, where DDP needs one and a half times as many steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import paceline as pl
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from examples.stragglers import DDP, EPOCHS, RATES, STRATEGIES, seconds_to_target, train

ROUNDS = 5
LIMIT_S = 100.0
FAMILY = tuple(name for name in STRATEGIES if name not in (DDP, "all-reduce"))
"""Variants of the parameter server."""

Runs = dict[str, list[pl.Run | None]]


def measure() -> Result:
    result = Result(title="seconds to 97 % of the digits, rank 3 of 4 slow", unit="s", rows=[], goals=[])
    for rate in RATES:
        _measure_rate(rate, result)
    result.notes.append(_at_the_better_rate(result.rows))
    return result


def _measure_rate(rate: float, result: Result) -> None:
    runs = _take_turns(rate)
    rows = {name: Row(what=f"{name}, rate {rate:g}", rounds=times) for name, times in _reached(runs).items()}
    result.rows += rows.values()
    result.notes += [
        f"{name}, rate {rate:g}: did not reach the target within {EPOCHS} epochs in every round"
        for name in STRATEGIES
        if name not in rows
    ]
    if DDP not in rows or not rows.keys() & set(FAMILY):
        result.unmeasured.append(
            f"DDP / best of the family, rate {rate:g}: one of them never reached the target"
        )
        return
    best = min((name for name in FAMILY if name in rows), key=lambda name: rows[name].median)
    result.goals.append(
        Goal(
            what=f"rate {rate:g}: DDP / best of the family ({best})",
            rounds=compare(rows[DDP], rows[best]),
            at_least=2.0 if rate == RATES[0] else None,
        )
    )
    result.goals += [
        Goal(what=f"rate {rate:g}: DDP / {name}", rounds=compare(rows[DDP], row))
        for name, row in rows.items()
        if name not in (DDP, best)
    ]
    result.notes.append(_by_the_stopwatch(rate, runs, best))


def _take_turns(rate: float) -> Runs:
    """Run every strategy once per round, starting with another one each time. Each round has its own seed."""
    runs: Runs = {name: [] for name in STRATEGIES}
    for number in rounds(ROUNDS, LIMIT_S):
        start = number % len(STRATEGIES)
        for name in STRATEGIES[start:] + STRATEGIES[:start]:
            runs[name].append(train(name, rate, seed=number))
    return runs


def _reached(runs: Runs, *, with_evaluation: bool = False) -> dict[str, list[float]]:
    """Return the seconds of each strategy that reached the target in every round."""
    times: dict[str, list[float]] = {}
    for name, each in runs.items():
        found = [seconds_to_target(run, with_evaluation=with_evaluation) for run in each]
        reached = [time for time in found if time is not None]
        if len(reached) == len(each):
            times[name] = reached
    return times


def _by_the_stopwatch(rate: float, runs: Runs, best: str) -> str:
    times = _reached(runs, with_evaluation=True)
    ratio = statistics.median(a / b for a, b in zip(times[DDP], times[best], strict=True))
    return f"rate {rate:g}, with the time of evaluation counted in: DDP / {best} {ratio:.2f}"


def _at_the_better_rate(rows: Sequence[Row]) -> str:
    """Compare both sides at their better rate, so that no rate favours one of them."""
    ddp = [row for row in rows if row.what.startswith(DDP)]
    family = [row for row in rows if row.what.startswith(FAMILY)]
    if not ddp or not family:
        return "the better rate of each is unknown"
    a, b = (min(group, key=lambda row: row.median) for group in (ddp, family))
    return f"each at its better rate: {a.what} / {b.what} {a.median / b.median:.2f}"
