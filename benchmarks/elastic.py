"""Lost workers: seconds from a kill to the next step, and the time lost, against torchrun with DDP on Gloo.

4 workers train the same model on both sides. In Paceline's run, workers are killed at random times and start again
(`restart=True`). torchrun restarts all workers, which continue from a checkpoint of every tenth step. The time lost per
kill is the time from the kill until a step is complete that had not been complete before. A run with
`min_workers` without faults is compared with one without it, interleaved. The runs with kills also give the cost of a
join, and a run with a recorded trace of additions and removals is compared with its simulation.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import paceline as pl
from benchmarks.mlp import SAMPLES, build_model, cross_entropy, make_data, make_optimizer
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds

PARTS = ("kills", "cost", "torchrun", "trace")
WORKERS = 4
KILLS, KILLS_PER_RUN = 40, 8
APART_S = 1.0
STEPS = 120
BASELINE_KILLS = 5
ROUNDS, LIMIT_S = 7, 120.0
CHANGES, TRACE_S, TRACE_WORKERS = 30, 60.0, 8
TRACE_COMPUTE = pl.times.Constant("250ms")


def a_task() -> pl.Task:
    return pl.Task(
        model=build_model,
        data=make_data(WORKERS),
        loss=cross_entropy,
        optimizer=make_optimizer,
        batch_size=SAMPLES * WORKERS,
    )


def measure(parts: tuple[str, ...] = PARTS) -> Result:
    result = Result(
        title=f"lost workers, {WORKERS} workers, 1.9 million parameters", unit="s", rows=[], goals=[]
    )
    if "kills" in parts:
        _measure_kills(result)
    if "torchrun" in parts:
        _measure_torchrun(result)
    if "cost" in parts:
        _measure_cost(result)
    if "trace" in parts:
        _measure_trace(result)
    return result


def _measure_kills(result: Result) -> None:
    waits: list[float] = []
    joins: list[float] = []
    for number in range(-(-KILLS // KILLS_PER_RUN)):
        run, times_s = _kill_some(random.Random(number))
        waits += _waits(run, times_s)
        joins += _joins(run)
    waits.sort()
    result.rows.append(Row(what="from SIGKILL to the end of the survivors' next step", rounds=waits))
    p95 = waits[min(len(waits) - 1, int(0.95 * len(waits)))]
    result.goals += [
        Goal(what="the same, median (s)", rounds=[statistics.median(waits)], at_most=1.0),
        Goal(what="the same, 95th percentile (s)", rounds=[p95], at_most=3.0),
    ]
    result.notes.append(f"{len(waits)} kills of members, all survived")
    if joins:
        result.goals.append(Goal(what="cost of a join to the others (steps)", rounds=joins, at_most=1.0))


def _kill_some(rng: random.Random) -> tuple[pl.Run, list[float]]:
    """Return a run whose workers are killed, and the times of the kills."""
    times_s = [1.0 + number * APART_S + rng.random() * APART_S / 2 for number in range(KILLS_PER_RUN)]
    faults = [pl.faults.Kill(rng.randrange(WORKERS), at=at_s) for at_s in times_s]
    cluster = pl.Local(workers=WORKERS, threads=1, min_workers=1, restart=True, faults=faults)
    return _run_until(times_s[-1] + 2 * APART_S, cluster), times_s


class _Stops:
    """Ends a run at a time of its clock."""

    def __init__(self, ends_s: float) -> None:
        self._ends_s = ends_s

    def on_step(self, record: pl.runs.run.Record) -> object:
        return pl.STOP if record.seconds > self._ends_s else None


def _run_until(ends_s: float, cluster: pl.Local | pl.Simulated) -> pl.Run:
    return pl.train(a_task(), "all-reduce", cluster, steps=10**6, callbacks=[_Stops(ends_s)])


def _waits(run: pl.Run, times_s: list[float]) -> list[float]:
    """Return for each kill of a member the seconds until a step after it was complete."""
    waits = []
    for each in run.generations:
        if each.lost:
            killed_s = max(at_s for at_s in times_s if at_s <= each.detected_s)
            done_s = next(record.seconds for record in run.history if record.seconds > each.began_s)
            waits.append(done_s - killed_s)
    return waits


def _joins(run: pl.Run) -> list[float]:
    """Return for each join the time between the steps before and after it, in steps, without the step itself."""
    done_s = [record.seconds for record in run.history]
    step_s = statistics.median(later - earlier for earlier, later in itertools.pairwise(done_s))
    found = []
    for each in run.generations:
        if each.joined and not each.lost:
            before_s = max((at_s for at_s in done_s if at_s <= each.detected_s), default=0.0)
            after_s = next(at_s for at_s in done_s if at_s > each.began_s)
            found.append((after_s - before_s) / step_s - 1)
    return found


def _a_trace(rng: random.Random) -> list[pl.faults.Fault]:
    """Return additions and removals. At most half of the workers are missing at any time."""
    missing: set[int] = set()
    found: list[pl.faults.Fault] = []
    for number in range(CHANGES):
        at_s = (number + rng.random()) * TRACE_S / CHANGES
        if missing and (len(missing) >= TRACE_WORKERS // 2 or rng.random() < 0.5):
            missing.remove(min(missing))
            found.append(pl.faults.Join(at=at_s))
        else:
            missing.add(rank := rng.choice([r for r in range(TRACE_WORKERS) if r not in missing]))
            found.append(pl.faults.Kill(rank, at=at_s))
    return found


def _measure_trace(result: Result) -> None:
    link, faults = pl.Link("10Gbps", "50us"), _a_trace(random.Random(1))
    given: dict[str, Any] = {"workers": TRACE_WORKERS, "compute": TRACE_COMPUTE, "link": link}
    lossy = given | {"min_workers": 1, "faults": faults}
    measured = _goodput(pl.Local(threads=1, **given), pl.Local(threads=1, **lossy))
    predicted = _goodput(pl.Simulated(math="none", **given), pl.Simulated(math="none", **lossy))
    changes = f"{CHANGES} additions and removals in {TRACE_S:g} s, {TRACE_WORKERS} workers"
    result.notes.append(f"{changes}: goodput {measured:.1%}, predicted {predicted:.1%}")
    ratio = [predicted / measured]
    result.goals.append(Goal(what="goodput: predicted / measured", rounds=ratio, at_least=0.9, at_most=1.1))


def _goodput(calm: pl.Local | pl.Simulated, lossy: pl.Local | pl.Simulated) -> float:
    """Return the steps in `TRACE_S` with faults, relative to those without."""
    return _run_until(TRACE_S, lossy).steps / _run_until(TRACE_S, calm).steps


def _measure_torchrun(result: Result) -> None:
    ours = next((row for row in result.rows if "SIGKILL" in row.what), None)
    theirs = [_seconds_lost(random.Random(number)) for number in range(BASELINE_KILLS)]
    failed = theirs.count(math.inf)
    if failed:
        result.notes.append(f"torchrun did not recover from {failed} of {BASELINE_KILLS} kills")
        theirs = [each for each in theirs if each < math.inf]
    row = Row(what="torchrun, DDP on Gloo: from SIGKILL to the first new step", rounds=theirs)
    result.rows.append(row)
    if ours is not None:
        goal = [ours.median / row.median]
        result.goals.append(Goal(what="time lost per kill: ours / torchrun", rounds=goal, at_most=0.2))


def _seconds_lost(rng: random.Random) -> float:
    """Return the seconds from a kill to a step that had not been complete before. Infinity if the run failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        killed_in = rng.randrange(20, 40)
        (folder / "kill").write_text(str(killed_in))
        script = Path(__file__).parent / "torchrun_ddp.py"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "3"]
        command += ["--nproc-per-node", str(WORKERS), str(script), name, "60"]
        root = str(Path(__file__).parents[1])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
        ended = subprocess.run(command, check=False, capture_output=True, timeout=300, env=environment)
        if ended.returncode:
            return math.inf
        killed_s = float((folder / "killed").read_text())
        lines = [line.split() for line in (folder / "steps").read_text().splitlines()]
        return min(float(at_s) for step, at_s in lines if int(step) >= killed_in) - killed_s


def _measure_cost(result: Result) -> None:
    seconds: dict[str, list[float]] = {"shared": [], "plain": [], "elastic": []}
    for _ in rounds(ROUNDS, LIMIT_S):
        for name, strategy, fewest in (
            ("shared", "all-reduce", None),
            ("plain", "all-reduce:algorithm=ring", None),
            ("elastic", "all-reduce", 1),
        ):
            cluster = pl.Local(workers=WORKERS, threads=1, min_workers=fewest)
            seconds[name].append(pl.train(a_task(), strategy, cluster, steps=STEPS).step_seconds)
    rows = {
        "shared": Row(what="a step without min_workers", rounds=seconds["shared"]),
        "plain": Row(what="a step without min_workers, by messages", rounds=seconds["plain"]),
        "elastic": Row(what="a step with min_workers", rounds=seconds["elastic"]),
    }
    result.rows += rows.values()
    result.goals += [
        Goal(
            what="a step with min_workers / without, by messages",
            rounds=compare(rows["elastic"], rows["plain"]),
            at_most=1.02,
        ),
        Goal(
            what="a step with min_workers / without",
            rounds=compare(rows["elastic"], rows["shared"]),
            at_most=1.02,
        ),
    ]
