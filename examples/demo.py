"""The demo of `make demo`, in about a minute: this machine, the cluster you do not have, and the proof.

1. Handwritten digits on local workers: which strategy reaches the target first on this machine, and why.
2. A plan for the same task on 4 and on 16 machines that you do not have, one of them slow: the strategy, its parameters
   and the number of machines that reach the target first, as predicted.
3. Four configurations of the plan on 4 emulated machines: real processes and real messages that take the time of those
   machines and links. Predicted and measured times are shown side by side.

python examples/demo.py
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.analysis.comparison.entry import Entry as Measured
from paceline.bench.measure import measure
from paceline.bench.spec import Spec
from paceline.cli.progress import shown_comparison, shown_search
from paceline.cli.table import print_table
from paceline.costs.units import format_seconds
from paceline.planner.check import Check
from paceline.planner.entry import Entry
from paceline.planner.plan import Plan

PLAN, RUNS = Path("runs/demo/plan.html"), Path("runs/demo/report.html")
TARGET = 0.9
SAMPLE_MS = 6.0
"""Milliseconds of the gradient of one sample on the simulated machines. An invented number. It is large compared with
the time that this machine needs, so that other processes do not make the emulated machines slower."""

DEFAULT = "all-reduce"
STRATEGIES = ("single", DEFAULT, "sync", "k-sync", "async", "local-sgd", "decentralized")
SHOWN = 10
NEXT = """Next steps, with your own model and data:

    paceline new mine.py        # writes a complete task to start from
    paceline check mine.py      # tests it: costs, and which strategies work
    paceline plan mine.py --cluster four-pcs --check
    paceline compare mine.py --strategies all-reduce,k-sync:k=3 --workers 4 --slow 3:4x

The third command plans for a description of a cluster; --cluster local plans for this machine. With --simulate
--bandwidth 1Gbps --latency 50us the last command predicts the times of these strategies. With --compute const:20ms
--bandwidth 1Gbps --latency 50us it emulates machines that you do not have."""


def described(machines: int, batch_size: int) -> dict[str, Any]:
    """Return the arguments of the simulated cluster. Each of 16 machines has a quarter of the work of each of 4."""
    slice_ms = SAMPLE_MS * batch_size / machines
    return {
        "workers": machines,
        "compute": pl.times.ShiftedExponential(shift=f"{0.9 * slice_ms:g}ms", mean=f"{0.1 * slice_ms:g}ms"),
        "link": pl.Link("1Gbps", "50us"),
        "slow": {machines - 1: 4.0},
        "threads": 1,
    }


def network() -> nn.Sequential:
    """Return a model with gradients of less than a millisecond on this machine."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def digits() -> pl.Task:
    task = pl.load_task(Path(__file__).with_name("digits.py"))
    return replace(
        task, model=network, optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9), target=TARGET
    )


def this_machine(task: pl.Task) -> None:
    """Run the first part."""
    cores = len(os.sched_getaffinity(0))
    print(f"1. This machine: {cores} core{'s' * (cores > 1)}", end="", flush=True)
    sizes = Spec(pattern="all-reduce", workers=2, algorithms=("ring",), end_bytes=2**22)
    bench = measure(sizes, pl.Local(workers=2))
    print(f"; workers communicate through its memory ({bench.fit.link if bench.fit else 'not measured'}).\n")
    names = [DEFAULT, "k-sync:k=3", "decentralized:mode=async"]
    with shown_comparison(quiet=False) as progress:
        found = pl.compare(
            task,
            names,
            pl.Local(workers=4, threads=1),
            epochs=5,
            evaluate_every=2,
            stop_at_target=True,
            progress=progress,
        )
    print_table(found.table.header, found.table.cells)
    said = " ".join(found.summary[:2])
    if found.winner == "single":
        said += f" Four workers share {cores} cores here, and the model is too small to gain from parallel training."
    print(f"\n{said}")


def planned(task: pl.Task, machines: int, strategies: Sequence[str] = STRATEGIES) -> Plan:
    """Run the second part: plan for this number of machines."""
    cluster = pl.Simulated(**described(machines, task.batch_size))
    with shown_search(quiet=False) as progress:
        found = pl.plan(
            task, cluster, strategies=strategies, workers=(machines, machines), epochs=5, progress=progress
        )
    print(f"\n{cluster}:\n")
    print_table(found.table.header, found.table.cells[:SHOWN])
    print("", *found.summary, sep="\n")
    return found


def families(found: Plan) -> list[str]:
    """Return the strategies that reach the target, best first."""
    return list(dict.fromkeys(entry.family for entry in found.ranked))


def chosen(found: Plan) -> list[Entry]:
    """Return the best entries of two strategies, the default one, and the slowest that reaches the target."""
    parallel = [entry for entry in found.ranked if entry.workers > 1]
    best = {entry.family: entry for entry in reversed(parallel)}
    two = sorted(best.values(), key=found.value)[:2]
    entries = [*two, found.entry(DEFAULT), parallel[-1]]
    return list({entry.strategy: entry for entry in entries}.values())


def proved(found: Plan) -> Check:
    """Run the third part: configurations of the plan in real processes."""
    cluster = pl.Local(**described(found.cluster.workers, found.batch_size))
    print(f"\n3. The proof: {cluster}.\n", flush=True)
    with shown_search(quiet=False) as progress:
        done = found.check(entries=chosen(found), progress=progress)
    print_table(done.header, done.cells)
    print("", *done.summary, sep="\n")
    return done


def story(found: Plan, done: Check) -> list[str | pl.Proof]:
    """Return the introduction of the report of the measured runs."""
    best, default = found.best, found.entry(DEFAULT)
    return [
        f"On {found.cluster.workers} machines, one of them 4 times as slow, {best} was planned to reach {TARGET:.0%} "
        f"after {format_seconds(best.seconds)}; {DEFAULT}, which waits for the slow machine, after "
        f"{format_seconds(default.seconds)}.",
        "These runs are measured: real processes, messages and computation on this machine, with the emulated times "
        f"of those machines and of links of 1 Gbit/s. {' '.join(done.summary)}",
    ]


def reported(found: Plan, done: Check) -> None:
    """Write the page of the plan, and that of the measured runs."""
    title = "Handwritten digits on a cluster you do not have"
    found.report(PLAN, title=title, command="make demo")
    runs = tuple(Measured(name=str(row.entry), runs=(row.run,)) for row in done.rows if row.run is not None)
    if runs:
        pl.Comparison(entries=runs).report(RUNS, title=title, command="make demo", story=story(found, done))


def main() -> None:
    task = digits()
    this_machine(task)
    print(
        f"\n2. The cluster you do not have: a gradient takes {SAMPLE_MS:g} ms per sample there.", flush=True
    )
    four = planned(task, 4)
    planned(task, 16, families(four))
    done = proved(four)
    reported(four, done)
    print(f"\nReports: {PLAN} and {RUNS}\n\n{NEXT}")


if __name__ == "__main__":
    main()
