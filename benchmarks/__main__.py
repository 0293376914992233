"""Run the benchmarks by name, all of them by default."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.result import Result
from benchmarks.rounds import busy_cores

# Not imported here: each benchmark imports torch, and one of them measures the time of that import.
BENCHMARKS = {
    "step_time": "one step of all-reduce, against DistributedDataParallel and against no communication",
    "simulator": "messages and updates per second in the simulator, against SimPy",
    "start": "seconds until 8 workers can step, against spawned processes",
    "tracing": "cost of the trace in a step",
    "finite_check": "cost of refusing gradients that are not finite, in a step",
    "emulated_link": "seconds of all-reduces on an emulated link, against the simulation",
    "decentralized": "seconds to a target over a slow link by peers that communicate less, against all-reduce",
    "push_pull": "ms of a push and a pull of 1 and 4 MiB by 3 workers, against Gloo and Ray",
    "two_hosts": "seconds of a hierarchical all-reduce over a slow link, against the flat ring and the formula",
    "ray_start": "seconds until 4 workers on a running Ray cluster can step, against processes that import torch",
    "report_page": "seconds until Chromium shows a report of 50,000 spans, against its limit",
    "loading": "a step with samples that take 5 ms each and 2 loaders, and 3 workers on a mapped file of 2 GB",
    "pipeline": "one step of a pipeline of 2 stages, against torch.distributed.pipelining on Gloo",
    "pipeline_prediction": "predicted seconds of a pipeline step on this machine, against measured ones",
    "plan": "24 configurations on this machine, predicted before they are measured; the regret of the choice",
    "tensor": "one step with matrices split among 2 workers, against DTensor on Gloo and no communication",
    "zero": "one step of zero in stages 2 and 3, against FSDP2 on Gloo and against no communication",
    "codecs": "GB/s of each codec, and a step over a link of 100 Mbit/s with and without them",
    "precision": "a step of matrix products in float32, bfloat16 and float16: alone, by 2 workers, and over 100 Mbit/s",
    "checkpoints": "seconds to save and load 1 GiB, against torch.save, torch.load and torch.distributed.checkpoint",
    "elastic": "seconds from a killed worker to the next step, against torchrun; cost of min_workers and of a join",
    "evaluation": "an evaluation shared by 2 workers, against one by the first worker only",
    "resume": "a step with a checkpoint, against one without; seconds until a resumed run makes its first step",
    "stragglers": "seconds to a target with one of 4 workers slow, against DistributedDataParallel",
}


def main() -> None:
    options = _parse()
    results: dict[str, Result] = {}
    for name in options.names or BENCHMARKS:
        began_s, busy = time.monotonic(), busy_cores()
        results[name] = _measure(*name.split(":"))
        took_s, busy = time.monotonic() - began_s, max(busy, busy_cores())
        print(f"{name}: {results[name]}")
        print(f"  took {took_s:.0f} s; other processes used {busy:.1f} cores before or after\n", flush=True)
    missed = [name for name, result in results.items() if not result.met]
    print(f"targets missed in: {', '.join(missed)}" if missed else "all measured targets met")
    if options.json:
        options.json.write_text(json.dumps(_as_dict(results), indent=1) + "\n", encoding="utf-8")


def _measure(name: str, *parts: str) -> Result:
    module = importlib.import_module(f"benchmarks.{name}")
    known: Sequence[str] = getattr(module, "PARTS", ())
    unknown = [part for part in parts if part not in known]
    if unknown:
        raise SystemExit(f"{name} has no part {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    result: Result = module.measure(parts) if parts else module.measure()
    return result


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    listing = "\n".join(f"  {name:<13} {what}" for name, what in BENCHMARKS.items())
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Compare Paceline with its baselines.\n\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "names", nargs="*", metavar="name", help="benchmarks to run (default: all); name:part selects a part"
    )
    made.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round to this file"
    )
    return made


def _parse() -> argparse.Namespace:
    options = parser().parse_args()
    unknown = [name for name in options.names if name.split(":")[0] not in BENCHMARKS]
    if unknown:
        parser().error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    return options


def _as_dict(results: dict[str, Result]) -> dict[str, object]:
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }
    return {"machine": machine, "benchmarks": {name: result.as_dict() for name, result in results.items()}}


if __name__ == "__main__":
    main()
