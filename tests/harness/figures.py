"""Record the results of every strategy in every world, and compare two recordings: a refactoring must change nothing.

    python tests/harness/figures.py record before.json     # in the tree before
    python tests/harness/figures.py record after.json      # in the tree after
    python tests/harness/figures.py compare before.json after.json

A recording has, for each strategy and world, a hash of the weights, seconds (in virtual time), spans of each kind,
memory of each rank, bytes and messages. Figures of processes that depend on which rank is quicker are left out.
"""

import argparse
import collections
import hashlib
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from conformance.cases import ASYNCHRONOUS, MESHES, PARTING_SEQUENCES, SHARING_MEMORY, SPECS, make_task
from tensor_models import encoder_task

import paceline as pl
from paceline.testing.worlds import simulated
from paceline.trace import Kind

STEPS = 4
EXACT_KINDS = {Kind.COMPUTE, Kind.UPDATE, Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHTS}
"""Kinds with the same number of spans in every run of processes."""

LINK = pl.Link("1Gbps", "50us")
WORLDS = {
    "simulated": lambda workers: simulated(workers, link=LINK),
    "simulated, shared memory": lambda workers: simulated(workers, link="shared-memory"),
    "simulated, 2 hosts": lambda workers: simulated(workers, link=LINK, hosts=min(2, workers)),
    "simulated, one slow": lambda workers: simulated(workers, link=LINK, slow={0: 3.0}),
    "simulated, no mathematics": lambda workers: simulated(workers, link=LINK, math="none"),
    "local": lambda workers: pl.Local(workers=workers, threads=1),
    "local, tcp": lambda workers: pl.Local(workers=workers, threads=1, link="tcp"),
}


def cases():
    """Yield (world, strategy, workers, task)."""
    for world in WORLDS:
        for spec in SPECS:
            for workers in (1,) if spec == "single" else (2, 3):
                if not (spec in SHARING_MEMORY and world in ("simulated, 2 hosts", "local, tcp")):
                    yield world, spec, workers, make_task("plain", "adam")
        for spec, workers in MESHES:
            yield world, spec, workers, make_task("plain", "momentum")
        for spec in PARTING_SEQUENCES:
            yield world, spec, 4, encoder_task(length=8)


def figures_of(run, *, is_virtual, is_reproducible, has_weights):
    found = {"steps": run.steps}
    if is_virtual:
        found["seconds"] = repr(run.seconds)
    if is_virtual or is_reproducible:
        if has_weights:
            found["weights"] = hashlib.sha256(run.parameters.numpy().tobytes()).hexdigest()[:16]
        found["sent"] = [
            list(np.atleast_1d(run.bytes_sent).tolist()),
            list(np.atleast_1d(run.messages_sent).tolist()),
        ]
        found["memory"] = [dict(rank) for rank in run.memory]
        kinds = collections.Counter(
            Kind(int(kind)) for rank in run.trace.spans for kind in rank.array["kind"]
        )
        found["spans"] = {
            kind.name: count for kind, count in sorted(kinds.items()) if is_virtual or kind in EXACT_KINDS
        }
    return found


def record(path):
    recording = {}
    for world, spec, workers, task in cases():
        name = f"{world} | {spec} | {workers}"
        is_virtual = world.startswith("simulated")
        is_reproducible = spec.partition(":")[0] not in ASYNCHRONOUS and "mode=async" not in spec
        try:
            run = pl.train(task, spec, WORLDS[world](workers), steps=STEPS)
        except pl.PacelineError as error:
            recording[name] = {"error": type(error).__name__}
        else:
            has_weights = world != "simulated, no mathematics"
            recording[name] = figures_of(
                run, is_virtual=is_virtual, is_reproducible=is_reproducible, has_weights=has_weights
            )
    path.write_text(json.dumps(recording, indent=1))
    print(f"{len(recording)} runs, {sum('error' in each for each in recording.values())} of them refused")


def compare(before, after):
    old, new = (json.loads(path.read_text()) for path in (before, after))
    different = 0
    for name in sorted(old.keys() | new.keys()):
        a, b = old.get(name, {}), new.get(name, {})
        for figure in sorted(a.keys() | b.keys()):
            if a.get(figure) != b.get(figure):
                different += 1
                print(f"{name}: {figure}\n    {a.get(figure)}\n    {b.get(figure)}")
    print(f"{len(old)} and {len(new)} runs, {different} figures differ")
    return different


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("path", type=pathlib.Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=pathlib.Path)
    comparing.add_argument("after", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "record":
        record(options.path)
    else:
        sys.exit(compare(options.before, options.after) > 0)


if __name__ == "__main__":
    main()
