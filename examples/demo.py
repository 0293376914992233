"""What `make demo` runs, in about a minute: this machine, the cluster you do not have, and the proof.

1. Handwritten digits on local workers, as they are: who reaches the target first on this machine, and why.
2. The same task on 4 and on 16 machines that are not here, one of them slow: what a simulation predicts.
3. Four of these strategies on 4 machines once more, now in real processes. They exchange real messages, and take the
   time that those machines and their links would take: predicted and measured side by side.

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
"""What the gradient of one sample takes on the machines that are not here. It is made up, as they are."""

DEFAULT = "all-reduce"
NEXT = """What to type next, with a model and data of your own:

    paceline new mine.py        # writes a task to start from; it trains as it is
    paceline check mine.py      # what it is, and what will not work with which strategy
    paceline compare mine.py --strategies all-reduce,k-sync:k=3 --workers 4 --slow 3:4x

With --simulate --bandwidth 1Gbps --latency 50us the last one predicts; with --compute const:20ms --bandwidth 1Gbps
--latency 50us it runs on machines that you do not have."""


def strategies(machines: int) -> list[str]:
    """A dozen ways to train on so many machines."""
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
    """The cluster that is not here. Its machines share each batch: of 16, each has a quarter of the work of 4."""
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
    """The first act; what came of it, in words."""
    cores = len(os.sched_getaffinity(0))
    print(f"1. This machine: {cores} core{'s' * (cores > 1)}", end="", flush=True)
    sizes = Spec(pattern="all-reduce", workers=2, algorithms=("ring",), end_bytes=2**22)
    bench = measure(sizes, pl.Local(workers=2))
    print(f"; workers talk through its memory ({bench.fit.link if bench.fit else 'not measured'}).\n")
    names = [DEFAULT, "k-sync:k=3", "decentralized:mode=async"]
    found = compared(task, names, pl.Local(workers=4, threads=1))
    print_table(found.table.header, found.table.cells)
    said = " ".join(found.summary[:2])
    if found.winner == "single":
        said += f" Four workers share {cores} cores here, and so small a model is not worth sharing out."
    print(f"\n{said}")
    return said


def elsewhere(task: pl.Task, machines: int) -> pl.Proof:
    """The second act, for so many machines: what a simulation says."""
    cluster = pl.Simulated(**described(machines, task.batch_size))
    found = compared(task, strategies(machines), cluster)
    proof = pl.Proof(title=f"On {machines} machines, one of them slow", predicted=found)
    print(f"\n{cluster}:\n")
    print_table(proof.header, proof.cells)
    print(*(f"\n{entry.name} failed: {entry.error}" for entry in found.failed), sep="")
    return proof


def chosen(proof: pl.Proof) -> list[str]:
    """The best two, the default, and the worst of those that reach the target."""
    names = [row.predicted.name for row in proof.rows if row.predicted.time_s is not None]
    names.remove("single")
    return list(dict.fromkeys([*names[:2], DEFAULT, names[-1]]))


def proved(task: pl.Task, proof: pl.Proof) -> pl.Proof:
    """The third act: some of the strategies in real processes."""
    cluster = pl.Local(**described(4, task.batch_size))
    print(f"\n3. The proof: {cluster}.\n", flush=True)
    done = dataclasses.replace(proof, measured=compared(task, chosen(proof), cluster, baseline=False))
    print_table(done.header, [row.texts for row in done.rows if row.measured is not None])
    print(f"\n{verdict(done)}")
    return done


def verdict(proof: pl.Proof) -> str:
    """How far predicted and measured are apart, and which gradients this machine was too slow for."""
    assert proof.measured is not None
    said = f"Predicted and measured differ by at most {proof.largest_error or 0.0:.1%}."
    for run in (run for entry in proof.measured.entries for run in entry.runs):
        if "overruns" in run.environment:
            said += f" {run.strategy}: {run.environment['overruns']}."
    return said


def story(here: str, proof: pl.Proof, larger: pl.Proof) -> list[str | pl.Proof]:
    """What the page begins with."""
    rows = {row.predicted.name: row.predicted for row in proof.rows}
    best, default = proof.rows[0].predicted, rows[DEFAULT]
    lead = (
        f"On 4 machines, one of them 4 times as slow, {best.name} reaches {TARGET:.0%} after "
        f"{format_seconds(best.time_s or 0.0)}, {best.speed_up or 0.0:.1f} times as soon as one machine alone; "
        f"{DEFAULT}, which waits for the slow one, after {format_seconds(default.time_s or 0.0)}."
    )
    emulated = (
        f"Hollow bars were simulated. Filled ones were measured: real processes, real messages and real "
        f"mathematics on this machine, which take the time that those machines and their links of 1 Gbit/s would "
        f"take (emulated). {verdict(proof)}"
    )
    return [lead, emulated, proof, larger, f"This machine as it is: {here}"]


def main() -> None:
    task = dataclasses.replace(pl.load_task(Path(__file__).with_name("digits.py")), target=TARGET)
    here = this_machine(task)
    print(f"\n2. The cluster you do not have: a gradient takes {SAMPLE_MS:g} ms a sample there.", flush=True)
    four, sixteen = elsewhere(task, 4), elsewhere(task, 16)
    proof = proved(task, four)
    assert proof.measured is not None
    title = "Handwritten digits on a cluster you do not have"
    proof.measured.report(PAGE, title=title, command="make demo", story=story(here, proof, sixteen))
    print(f"\nThe page: {PAGE}\n\n{NEXT}")


if __name__ == "__main__":
    main()
