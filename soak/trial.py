"""Runs one case: its cluster, its fault, other load on the cores, and its reference simulations."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import paceline as pl
from paceline.errors import DeadlineError, PacelineError
from paceline.trace import Kind
from soak.cases import CHOOSING_ALGORITHMS, Case
from soak.checks import Oracles, Seen, check
from soak.faults import Injector
from soak.processes import fork_servers
from soak.tasks import make_task


def try_case(case: Case) -> tuple[Seen, list[str]]:
    """Run a case. Return the result and the violations."""
    with _cores(case):
        with _busy(case.busy):
            seen = _train(case)
        oracles = Oracles() if seen.error else _oracles(case)
    return seen, check(case, seen, oracles)


def _train(case: Case) -> Seen:
    injector = Injector(case)
    try:
        with injector:
            run = pl.train(
                make_task(case),
                case.spec,
                _cluster(case),
                steps=case.steps,
                seed=case.seed % 1000,
                progress=injector.progress,
            )
    except PacelineError as error:
        seen = _seen_of_error(error)
    else:
        seen = _seen_of_run(run)
    return dataclasses.replace(seen, fired=injector.fired, outlasted=injector.outlasted)


# The cluster


def _cluster(case: Case) -> Any:
    common: dict[str, Any] = {
        "workers": case.workers,
        "slow": case.slow,
        "delay": _delay(case),
        "deadline_s": case.deadline_s,
    }
    if case.cluster == "ray":
        return pl.Ray(**common)
    if case.cluster == "emulated":
        return pl.Local(**common, link=pl.Link(*case.link))
    if case.cluster.startswith("tcp"):
        return pl.Local(**common, link="tcp", encrypt=case.cluster == "tcp-encrypted")
    return pl.Local(**common)


def _delay(case: Case) -> Any:
    name, mean_s = case.delay
    kinds: dict[str, Any] = {"exponential": pl.times.Exponential, "constant": pl.times.Constant}
    return kinds[name](mean_s) if name else None


@contextlib.contextmanager
def _cores(case: Case) -> Iterator[None]:
    """Limit this process, and the processes of its fork server, to one core, if the case requires it."""
    everywhere = os.sched_getaffinity(0)
    _stay_on({min(everywhere)} if case.one_core else everywhere)
    try:
        yield
    finally:
        _stay_on(everywhere)


def _stay_on(cores: set[int]) -> None:
    for pid in (0, *(server.pid for server in fork_servers(os.getpid()))):
        os.sched_setaffinity(pid, cores)


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


# The result


def _seen_of_error(error: PacelineError) -> Seen:
    awaited = error.awaited if isinstance(error, DeadlineError) else str(getattr(error, "rank", ""))
    blamed = frozenset(map(int, re.findall(r"\d+", awaited)))
    return Seen(error=type(error).__name__, text=str(error), blamed=blamed)


def _seen_of_run(run: pl.Run) -> Seen:
    sent = {spans.rank: spans.of(Kind.SEND)["nbytes"] for spans in run.trace.spans}
    return Seen(
        parameters=run.parameters.numpy(),
        steps=[record.step for record in run.history],
        seconds=[record.seconds for record in run.history],
        losses=[record.loss for record in run.history],
        samples=[record.samples for record in run.history],
        staleness=run.staleness,
        bytes_sent=run.bytes_sent,
        messages_sent=run.messages_sent,
        traced={rank: (int(nbytes.sum()), len(nbytes)) for rank, nbytes in sent.items()},
        lost=[rank for rank, _ in run.lost],
    )


# The expected result


def _oracles(case: Case) -> Oracles:
    if not case.is_reproducible:
        return Oracles()
    threads = len(os.sched_getaffinity(0)) // (1 if case.word == "single" else case.workers)
    return Oracles(
        close=_simulate(case, *_single(case)) if case.is_synchronous else None,
        equal=_simulate(case, _same(case), case.workers),
        same_bits=threads <= 1 and "algorithm=native" not in case.spec,
    )


def _single(case: Case) -> tuple[str, int]:
    """Return the reference. BatchNorm normalises each worker's slice, so the reference has as many workers."""
    return ("map-reduce", case.workers) if case.batch_norm and case.word != "single" else ("single", 1)


def _same(case: Case) -> str:
    """Return the spec that follows the same code path in a simulation."""
    name, _, rest = case.spec.partition(":")
    words = [word for word in rest.split(",") if word and not word.startswith("algorithm=")]
    if case.uses_windows and case.word in CHOOSING_ALGORITHMS:
        words.append("algorithm=shared")
    elif "algorithm=" in rest and "algorithm=native" not in rest:
        return case.spec
    return f"{name}:{','.join(words)}" if words else name


def _simulate(case: Case, spec: str, workers: int) -> Seen:
    cluster = pl.Simulated(workers=workers, compute=pl.times.Constant(0.01))
    run = pl.train(make_task(case), spec, cluster, steps=case.steps, seed=case.seed % 1000)
    return _seen_of_run(run)
