"""Codecs: GB/s of encoding and decoding 25 MiB, and a step over a slow link with and without them.

The link is emulated, between two workers that train the same model with `all-reduce`. The break-even bandwidth is
predicted from the speed of the codec (`break_even`), and measured from the two steps: the time of a step without the
bytes saved is what encoding and decoding cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import paceline as pl
from benchmarks.mlp import SAMPLES, build_model, cross_entropy, make_data, make_optimizer
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from paceline.analysis.comparison.compression import break_even
from paceline.codecs import MessageCodec, codec_of

PARTS = ("speed", "link")
CODECS = ("bf16", "fp16", "int8", "int4", "sign", "topk-0.01", "powersgd-2")
BYTES = 25 * 2**20
SIDE = 2560  # of the square matrix with these bytes
WORKERS = 2
LINK = pl.Link(bandwidth="100Mbps", latency="50us")
STEPS = 6
ROUNDS = 3
LIMIT_S = 60.0


def measure(part: str = "") -> Result:
    if part == "speed":
        return _speed()
    if part == "link":
        return _link()
    speed, link = _speed(), _link()
    link.title = f"{speed.title}; {link.title}"
    link.rows = [*speed.rows, *link.rows]
    return link


def _speed() -> Result:
    torch.set_num_threads(1)
    values = torch.randn(SIDE * SIDE, generator=torch.Generator().manual_seed(0))
    result = Result(title="GB/s of codecs, 25 MiB of float32, one thread", unit="GB/s", rows=[], goals=[])
    for codec in CODECS:
        encode, decode = _work(codec, values)
        taken = [(_processor_s(encode), _processor_s(decode)) for _ in range(ROUNDS)]
        for number, what in enumerate(("encode", "decode")):
            rates = [values.nbytes / 1e9 / each[number] for each in taken]
            result.rows.append(Row(what=f"{codec}, {what}", rounds=rates))
    result.notes.append("processor time, so that other processes count little")
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


def _link() -> Result:
    task = pl.Task(
        model=build_model,
        data=lambda: make_data(WORKERS),
        loss=cross_entropy,
        optimizer=make_optimizer,
        batch_size=SAMPLES * WORKERS,
    )
    result = Result(
        title=f"seconds of a step of all-reduce by {WORKERS} workers, {LINK}", unit="s", rows=[], goals=[]
    )
    runs: dict[str, list[pl.Run]] = {"none": [], "bf16": [], "int8": [], "powersgd-2": []}
    for _ in rounds(ROUNDS, LIMIT_S):
        for codec, made in runs.items():
            cluster = pl.Local(workers=WORKERS, link=LINK, threads=1)
            made.append(pl.train(task, f"all-reduce:codec={codec}", cluster, steps=STEPS))
    rows = {
        codec: Row(what=f"codec={codec}", rounds=[run.step_seconds for run in made])
        for codec, made in runs.items()
    }
    result.rows += rows.values()
    for codec in ("bf16", "int8", "powersgd-2"):
        bound = 0.6 if codec == "bf16" else None
        ratio = compare(rows[codec], rows["none"])
        result.goals.append(Goal(what=f"{codec} / none", rounds=ratio, at_most=bound))
        result.goals.append(_break_even_goal(codec, runs))
    result.unmeasured.append("PowerSGD against powerSGD_hook of DistributedDataParallel")
    return result


def _break_even_goal(codec: str, runs: dict[str, list[pl.Run]]) -> Goal:
    per_byte_s, ratios = LINK.seconds_per_byte, []
    for plain, coded in zip(runs["none"], runs[codec], strict=True):
        before, sent = (max(run.bytes_sent) / run.steps for run in (plain, coded))
        predicted, _ = break_even(codec, sent, before, WORKERS)
        cost_s = coded.step_seconds - plain.step_seconds + (before - sent) * per_byte_s
        ratios.append(predicted * cost_s / (before - sent))
    what = f"break-even bandwidth of {codec}: predicted / measured"
    return Goal(what=what, rounds=ratios, at_least=0.8, at_most=1.2)
