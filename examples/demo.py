"""The demo of `make demo`, in about a minute: this machine, the cluster you do not have, and the proof.

1. Handwritten digits on local workers: which strategy reaches the target first on this machine, and why.
2. The same task on 4 and on 16 simulated machines, one of them slow: the predicted times.
3. Four of these strategies on 4 emulated machines: real processes and real messages that take the time of those
   machines and links. Predicted and measured times are shown side by side.

python examples/demo.py
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import paceline as pl
from paceline.bench.measure import measure
from paceline.bench.spec import Spec
from paceline.cli.progress import shown_comparison
from paceline.cli.table import print_table
from paceline.costs.units import format_seconds

PAGE = Path("runs/demo/report.html")
TARGET = 0.95
SAMPLE_MS = 1.5
"""Milliseconds of the gradient of one sample on the simulated machines. An invented number."""

DEFAULT = "all-reduce"
NEXT = """Next steps, with your own model and data:

    paceline new mine.py        # writes a complete task to start from
    paceline check mine.py      # tests it: costs, and which strategies work
    paceline compare mine.py --strategies all-reduce,k-sync:k=3 --workers 4 --slow 3:4x

With --simulate --bandwidth 1Gbps --latency 50us the last command predicts the times. With --compute const:20ms
--bandwidth 1Gbps --latency 50us it emulates machines that you do not have."""


def strategies(machines: int) -> list[str]:
    """Return a dozen strategies for this number of machines."""
    return [
        DEFAULT,
        "all-reduce:algorithm=tree",
        "map-reduce",
        "sync",
        f"k-sync:k={machines - 1}",
        f"k-async:k={machines - 1}",
        "async",
        "local-sgd:period=4",
        "local-sgd:period=8",
        "decentralized:topology=ring",
        "decentralized:topology=exponential",
        "decentralized:mode=async",
    ]


def described(machines: int, batch_size: int) -> dict[str, Any]:
    """Return the arguments of the simulated cluster. Each of 16 machines has a quarter of the work of each of 4."""
    slice_ms = SAMPLE_MS * batch_size / machines
    return {
        "workers": machines,
        "compute": pl.times.ShiftedExponential(shift=f"{0.8 * slice_ms:g}ms", mean=f"{0.2 * slice_ms:g}ms"),
        "link": pl.Link("1Gbps", "50us"),
        "slow": {machines - 1: 4.0},
        "threads": 1,
    }


def compared(task: pl.Task, names: list[str], cluster: Any, **words: Any) -> pl.Comparison:
    with shown_comparison(quiet=False) as progress:
        return pl.compare(
            task, names, cluster, epochs=5, evaluate_every=2, stop_at_target=True, progress=progress, **words
        )


def this_machine(task: pl.Task) -> str:
    """Run the first part. Return a summary."""
    cores = len(os.sched_getaffinity(0))
    print(f"1. This machine: {cores} core{'s' * (cores > 1)}", end="", flush=True)
    sizes = Spec(pattern="all-reduce", workers=2, algorithms=("ring",), end_bytes=2**22)
    bench = measure(sizes, pl.Local(workers=2))
    print(f"; workers communicate through its memory ({bench.fit.link if bench.fit else 'not measured'}).\n")
    names = [DEFAULT, "k-sync:k=3", "decentralized:mode=async"]
    found = compared(task, names, pl.Local(workers=4, threads=1))
    print_table(found.table.header, found.table.cells)
    said = " ".join(found.summary[:2])
    if found.winner == "single":
        said += f" Four workers share {cores} cores here, and the model is too small to gain from parallel training."
    print(f"\n{said}")
    return said


def elsewhere(task: pl.Task, machines: int) -> pl.Proof:
    """Run the second part: simulate this number of machines."""
    cluster = pl.Simulated(**described(machines, task.batch_size))
    found = compared(task, strategies(machines), cluster)
    proof = pl.Proof(title=f"On {machines} machines, one of them slow", predicted=found)
    print(f"\n{cluster}:\n")
    print_table(proof.header, proof.cells)
    print(*(f"\n{entry.name} failed: {entry.error}" for entry in found.failed), sep="")
    return proof


def chosen(proof: pl.Proof) -> list[str]:
    """Return the best two strategies, the default, and the worst that reaches the target."""
    names = [row.predicted.name for row in proof.rows if row.predicted.time_s is not None]
    names.remove("single")
    return list(dict.fromkeys([*names[:2], DEFAULT, names[-1]]))


def proved(task: pl.Task, proof: pl.Proof) -> pl.Proof:
    """Run the third part: some of the strategies in real processes."""
    cluster = pl.Local(**described(4, task.batch_size))
    print(f"\n3. The proof: {cluster}.\n", flush=True)
    done = dataclasses.replace(proof, measured=compared(task, chosen(proof), cluster, baseline=False))
    print_table(done.header, [row.texts for row in done.rows if row.measured is not None])
    print(f"\n{verdict(done)}")
    return done


def verdict(proof: pl.Proof) -> str:
    """Return the difference between predicted and measured times, and the overruns of this machine."""
    assert proof.measured is not None
    said = f"Predicted and measured differ by at most {proof.largest_error or 0.0:.1%}."
    for run in (run for entry in proof.measured.entries for run in entry.runs):
        if "overruns" in run.environment:
            said += f" {run.strategy}: {run.environment['overruns']}."
    return said


def story(here: str, proof: pl.Proof, larger: pl.Proof) -> list[str | pl.Proof]:
    """Return the introduction of the report."""
    rows = {row.predicted.name: row.predicted for row in proof.rows}
    best, default = proof.rows[0].predicted, rows[DEFAULT]
    lead = (
        f"On 4 machines, one of them 4 times as slow, {best.name} reaches {TARGET:.0%} after "
        f"{format_seconds(best.time_s or 0.0)}, {best.speed_up or 0.0:.1f} times as soon as one machine; "
        f"{DEFAULT}, which waits for the slow machine, after {format_seconds(default.time_s or 0.0)}."
    )
    emulated = (
        f"Hollow bars are simulated. Filled bars are measured: real processes, messages and computation on this "
        f"machine, with the emulated times of those machines and of links of 1 Gbit/s. {verdict(proof)}"
    )
    return [lead, emulated, proof, larger, f"This machine, without emulation: {here}"]


def main() -> None:
    task = dataclasses.replace(pl.load_task(Path(__file__).with_name("digits.py")), target=TARGET)
    here = this_machine(task)
    print(
        f"\n2. The cluster you do not have: a gradient takes {SAMPLE_MS:g} ms per sample there.", flush=True
    )
    four, sixteen = elsewhere(task, 4), elsewhere(task, 16)
    proof = proved(task, four)
    assert proof.measured is not None
    title = "Handwritten digits on a cluster you do not have"
    proof.measured.report(PAGE, title=title, command="make demo", story=story(here, proof, sixteen))
    print(f"\nReport: {PAGE}\n\n{NEXT}")


if __name__ == "__main__":
    main()
