"""Codecs: GB/s of encoding and decoding 25 MiB, all-reduces and steps on slow links, and torch's `powerSGD_hook`.

Parts: `speed`, `link` (a step with and without codecs on 100 Mbit/s), `break-even` (the bandwidth below which a codec
pays off, predicted from its measured speed, against the one that all-reduces on links of 10, 100 and 1,000 Mbit/s
show), and `hook` (PowerSGD in both systems, with 2 and 4 workers, on this machine and on a paced link).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any

import torch

import paceline as pl
from benchmarks import powersgd_hook
from benchmarks.mlp import SAMPLES, build_model, cross_entropy, make_data, make_optimizer
from benchmarks.plain_torch import PlainTorch
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from paceline.analysis.comparison.compression import break_even
from paceline.codecs import MessageCodec, codec_of
from paceline.collectives import all_reduce
from paceline.collectives.coded import coded
from paceline.context import Context
from paceline.costs.units import format_bandwidth

PARTS = ("speed", "link", "break-even", "hook")
CODECS = ("bf16", "fp16", "int8", "int4", "sign", "topk-0.01", "powersgd-2")
BYTES = 25 * 2**20
SIDE = 2560  # of the square matrix with these bytes
WORKERS = 2
LINK = powersgd_hook.LINK
STEPS = 6
ROUNDS = 3
LIMIT_S = 60.0


def measure(parts: Sequence[str] = PARTS) -> Result:
    measured = {"speed": _speed, "link": _link, "break-even": _break_even, "hook": _hook}
    whole = Result(title="codecs", unit="GB/s; ms for steps and all-reduces", rows=[], goals=[])
    for part in parts:
        result = measured[part]()
        whole.rows += result.rows
        whole.goals += result.goals
        whole.notes += result.notes
        whole.unmeasured += result.unmeasured
    return whole


def _result(*notes: str) -> Result:
    return Result(title="", unit="", rows=[], goals=[], notes=list(notes))


# GB/s


def _speed() -> Result:
    torch.set_num_threads(1)
    values = torch.randn(SIDE * SIDE, generator=torch.Generator().manual_seed(0))
    result = _result("GB/s: of float32, one thread, processor time, so that other processes count little")
    for codec in CODECS:
        encode, decode = _work(codec, values)
        taken = [(_processor_s(encode), _processor_s(decode)) for _ in range(ROUNDS)]
        for number, what in enumerate(("encode", "decode")):
            rates = [values.nbytes / 1e9 / each[number] for each in taken]
            result.rows.append(Row(what=f"{codec}, {what} 25 MiB, GB/s", rounds=rates))
    return result


def _work(codec: str, values: torch.Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    made = codec_of(codec)
    assert made is not None
    if isinstance(made, MessageCodec):
        codes = made.encode(values)
        return lambda: made.encode(values), lambda: made.decode(codes, values.dtype)
    shapes, into = [(SIDE, SIDE)], torch.empty_like(values)
    memory = torch.zeros(made.memory_length(shapes))
    codes = made.encode(values, shapes, memory)
    return lambda: made.encode(values, shapes, memory), lambda: made.decode(codes, into, shapes)


def _processor_s(work: Callable[[], object]) -> float:
    start_s = time.thread_time()
    work()
    return time.thread_time() - start_s


# A step on a slow link


def _link() -> Result:
    task = pl.Task(
        model=build_model,
        data=lambda: make_data(WORKERS),
        loss=cross_entropy,
        optimizer=make_optimizer,
        batch_size=SAMPLES * WORKERS,
    )
    runs: dict[str, list[float]] = {"none": [], "bf16": [], "int8": [], "powersgd-2": []}
    for _ in rounds(ROUNDS, LIMIT_S):
        for codec, taken in runs.items():
            cluster = pl.Local(workers=WORKERS, link=LINK, threads=1)
            run = pl.train(task, f"all-reduce:codec={codec}", cluster, steps=STEPS)
            taken.append(1e3 * run.step_seconds)
    rows = {
        codec: Row(what=f"step of all-reduce:codec={codec}, {LINK}, ms", rounds=taken)
        for codec, taken in runs.items()
    }
    result = _result()
    result.rows += rows.values()
    for codec in ("bf16", "int8", "powersgd-2"):
        bound = 0.6 if codec == "bf16" else None
        result.goals.append(
            Goal(
                what=f"step on {LINK}: {codec} / none",
                rounds=compare(rows[codec], rows["none"]),
                at_most=bound,
            )
        )
    return result


# Break-even bandwidth


_LENGTHS = {"10Mbps": 400_000, "100Mbps": 1_800_000, "1Gbps": 1_800_000}
"""Numbers of an all-reduce on each link."""
_REPEATS = 5
_BOUNDED = ("int8", "int4")
"""Codecs that cost enough to be measured on these links. `bf16` costs less than a wait is exact to."""


def _break_even() -> Result:
    torch.set_num_threads(1)
    result = _result(
        "break-even: the measured one is from the time that an all-reduce with a codec takes beyond its bytes",
        "processor: the same from the processor time of a rank, which contains no other processes",
    )
    for bandwidth, length in _LENGTHS.items():
        link = pl.Link(bandwidth=bandwidth, latency="50us")
        ranks = pl.run_program(_both_ways(length), pl.Local(workers=WORKERS, link=link, threads=1)).results
        taken: dict[str, list[tuple[float, float]]] = ranks[0]
        for codec in ("bf16", *_BOUNDED):
            result.goals += _break_even_goals(codec, link, length, taken)
            what = f"all-reduce of {4 * length / 1e6:g} MB, {codec}, {link}, ms"
            result.rows.append(Row(what=what, rounds=[1e3 * seconds for seconds, _ in taken[codec]]))
    return result


def _both_ways(length: int) -> Callable[[Context], Awaitable[Any]]:
    async def program(ctx: Context) -> dict[str, list[tuple[float, float]]]:
        """Return seconds and processor seconds of all-reduces with each codec, in turn, without the first ones."""
        tensor = torch.randn(length, generator=torch.Generator().manual_seed(ctx.rank))
        nets = {codec: coded(ctx, codec) for codec in ("none", "bf16", *_BOUNDED)}
        taken: dict[str, list[tuple[float, float]]] = {codec: [] for codec in nets}
        for _ in range(_REPEATS + 1):
            for codec, net in nets.items():
                start_s, processor_s = ctx.now(), time.thread_time()
                await all_reduce(net, tensor, "ring")
                taken[codec].append((ctx.now() - start_s, time.thread_time() - processor_s))
        return {codec: seconds[1:] for codec, seconds in taken.items()}

    return program


def _break_even_goals(
    codec: str, link: pl.Link, length: int, taken: dict[str, list[tuple[float, float]]]
) -> list[Goal]:
    made = codec_of(codec)
    assert isinstance(made, MessageCodec)
    plain = 4 * length  # a ring of two ranks sends as much as the tensor has
    sent = 2 * made.encode(torch.zeros(length // 2)).nbytes
    predicted, _ = break_even(codec, sent, plain, WORKERS)
    pairs = list(zip(taken[codec], taken["none"], strict=True))
    wire_s = (plain - sent) * link.seconds_per_byte
    costs_s = {
        "": median(coded_s - plain_s + wire_s for (coded_s, _), (plain_s, _) in pairs),
        ", processor": median(coded_s - plain_s for (_, coded_s), (_, plain_s) in pairs),
    }
    goals = []
    for how, cost_s in costs_s.items():
        what = f"break-even of {codec}, predicted ({format_bandwidth(predicted)}) / measured{how}, {link}"
        ratio = predicted * max(cost_s, 0.0) / (plain - sent)
        bounds = {"at_least": 0.8, "at_most": 1.2} if codec in _BOUNDED and not how else {}
        goals.append(Goal(what=what, rounds=[ratio], **bounds))
    return goals


# PowerSGD of both systems

_HOOK_STEPS = 64


def _hook() -> Result:
    result = _result(
        f"hook: {_HOOK_STEPS} steps of an MLP with 1.9 million parameters, rank {powersgd_hook.RANK}"
    )
    for workers in (2, 4):
        try:
            with PlainTorch(workers, powersgd_hook.serve) as theirs:
                for link in ("tcp", LINK):
                    _compare_hook(result, theirs, workers, link)
        except RuntimeError as error:
            result.unmeasured.append(f"powerSGD_hook with {workers} workers: {error}")
    return result


def _compare_hook(result: Result, theirs: PlainTorch, workers: int, link: str | pl.Link) -> None:
    kind = powersgd_hook.FREE if isinstance(link, str) else powersgd_hook.PACED
    ours_s, theirs_s, better = [], [], []
    for _ in rounds(ROUNDS, LIMIT_S / 4):
        run = pl.train(
            _points_task(workers),
            f"all-reduce:codec=powersgd-{powersgd_hook.RANK}",
            pl.Local(workers=workers, link=link, threads=1),
            steps=_HOOK_STEPS,
        )
        ours_s.append(1e3 * run.step_seconds)
        theirs_s.append(1e3 * _step_s(theirs.run(kind, _HOOK_STEPS)[0]))
        accuracies = theirs.run(powersgd_hook.ACCURACY, 0)[0]
        other = accuracies[kind == powersgd_hook.PACED]
        better.append(powersgd_hook.accuracy_of(run.model) - other)
    where = f"{workers} workers, {'this machine' if kind == powersgd_hook.FREE else LINK}"
    ours = Row(what=f"step with powersgd-2, {where}, ms", rounds=ours_s)
    hook = Row(what=f"step with powerSGD_hook, {where}, ms", rounds=theirs_s)
    result.rows += [ours, hook]
    result.goals.append(Goal(what=f"step / powerSGD_hook, {where}", rounds=compare(ours, hook), at_most=0.8))
    result.goals.append(Goal(what=f"accuracy - powerSGD_hook, {where}", rounds=better, at_least=-0.01))


def _step_s(ends_s: Sequence[float]) -> float:
    """Return the mean seconds of a step. The first steps of the hook do not compress."""
    return (ends_s[-1] - ends_s[3]) / (len(ends_s) - 4)


def _points_task(workers: int) -> pl.Task:
    return pl.Task(
        model=build_model,
        data=lambda: powersgd_hook.make_points(workers),
        loss=cross_entropy,
        optimizer=make_optimizer,
        batch_size=SAMPLES * workers,
    )
