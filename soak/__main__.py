"""`python -m soak`: run random cases for some minutes, or the case of one number."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from soak.cases import GROUP, Case, fuzz_of, make_case
from soak.watch import Driver, Result


def main() -> None:
    options = _parse()
    began_s = time.monotonic()
    first = random.SystemRandom().randrange(10**8) // GROUP * GROUP if options.seed is None else options.seed
    seeds = iter(range(first, first + options.runs)) if options.runs else itertools.count(first)
    print(f"soak: starting with case {first}; failures are saved in {options.evidence}", flush=True)
    summary = Summary()
    with contextlib.suppress(KeyboardInterrupt):
        _work(seeds, lambda: time.monotonic() - began_s < 60 * options.minutes, options.evidence, summary)
    print(f"\n{summary}\ntook {time.monotonic() - began_s:.0f} s", flush=True)
    sys.exit(1 if summary.failures else 0)


class Summary:
    """Counts of runs and failures."""

    def __init__(self) -> None:
        self.words: Counter[str] = Counter()
        self.clusters: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.failures: list[int] = []

    def count(self, case: Case, result: Result) -> None:
        self.words[case.word] += 1
        self.clusters[case.cluster] += 1
        if case.fault is not None and result.fired:
            self.faults[case.fault.kind] += 1

    def __str__(self) -> str:
        lines = [f"{sum(self.words.values())} runs, {len(self.failures)} failures"]
        for title, counts in (
            ("strategies", self.words),
            ("clusters", self.clusters),
            ("faults", self.faults),
        ):
            lines.append(
                f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
            )
        if self.failures:
            lines.append("failed: " + ", ".join(map(str, self.failures)))
        return "\n".join(lines)


def _work(seeds: Iterator[int], has_time: Callable[[], bool], evidence: Path, summary: Summary) -> None:
    """Run the cases. Each group has its own driver, which is replaced if it hangs or dies."""
    driver: Driver | None = None
    last = -1
    try:
        for seed in itertools.takewhile(lambda _: has_time(), seeds):
            if driver is not None and (seed % GROUP == 0 or not driver.is_alive):
                ended, driver = driver, None
                _report(ended.end(last), summary)
            if driver is None:
                driver = Driver(evidence, fuzz_of(seed))
            case, result, last = make_case(seed), driver.run(seed), seed
            summary.count(case, result)
            _report(result, summary, case)
        if driver is not None:
            ended, driver = driver, None
            _report(ended.end(last), summary)
    finally:
        if driver is not None:  # Ctrl-C
            driver.close()


def _report(result: Result, summary: Summary, case: Case | None = None) -> None:
    """Print a line for each run. For a failed run, print everything needed to repeat it."""
    if case is not None:
        hit = f", {case.fault.kind} of rank {case.fault.rank}" if case.fault and result.fired else ""
        ended = f" -> {result.error}" if result.error else ""
        where = f"{case.workers} workers, {case.cluster}"
        print(f"{result.seed}: {result.seconds:5.1f} s  {case.spec}, {where}{hit}{ended}", flush=True)
    if result.violations:
        summary.failures.append(result.seed)
        print(_failure(result), flush=True)


def _failure(result: Result) -> str:
    group = result.seed // GROUP * GROUP
    python = shlex.quote(sys.executable)
    lines = [f"FAILED: case {result.seed}", *make_case(result.seed).describe().splitlines()]
    lines += [f"violated: {violation}" for violation in result.violations]
    lines.append(f"repeat it: {python} -m soak --seed {result.seed} --runs 1")
    lines.append(
        f"with the cases before it: {python} -m soak --seed {group} --runs {result.seed - group + 1}"
    )
    return "\n  ".join(lines)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="duration in minutes (default: 10)")
    parser.add_argument("--seed", type=int, help="number of the first case (default: random)")
    parser.add_argument(
        "--runs", type=int, default=0, help="number of cases (default: until the time is over)"
    )
    parser.add_argument(
        "--evidence", type=Path, default=Path("runs/soak"), help="folder for the data of failures"
    )
    options = parser.parse_args()
    if options.minutes <= 0 or options.runs < 0 or (options.seed is not None and options.seed < 0):
        parser.error("minutes must be above 0, seed and runs at least 0")
    return options


if __name__ == "__main__":
    main()
