"""The calculators of the site give the figures of the code that trains: each at 200 random points, to 0.1 %."""

import json
import math
import random

import build_site
import pytest
import torch
from report.chromium import LOADED

import paceline as pl
from paceline.codecs import MessageCodec, codec_of
from paceline.schedules.collectives import group_plan
from paceline.schedules.collectives.timing import time_schedule
from paceline.schedules.pipeline import pipeline_order
from paceline.testing.order_statistics import mean_staleness, seconds_per_update
from paceline.testing.pipeline_timing import activations, time_order

pytestmark = [pytest.mark.xdist_group("browser")]

POINTS = 200
CLOSE = 1e-3
NAMES = ("memory", "pipeline", "stragglers", "bandwidth")


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """A page with the formulas alone."""
    scripts = [(build_site.SITE / "static" / f"{name}.js").read_text() for name in NAMES]
    path = tmp_path_factory.mktemp("calculators") / "page.html"
    path.write_text("<!doctype html><script>" + "</script><script>".join(scripts) + "</script>")
    opened = browser.page(path, ready=LOADED)
    yield opened
    opened.close()


def computed(page, name, points):
    """Return the results of a calculator. JSON has no infinity, so it is a word."""
    expression = (
        f"JSON.stringify({json.dumps(points)}.map((point) => paceline.{name}(point)), "
        "(key, value) => value === Infinity ? 'Infinity' : value)"
    )
    return json.loads(page.value(expression))


def number(value):
    return math.inf if value == "Infinity" else value


def memory_points(rng):
    """Yield sizes of models with several meshes each: the planner counts a model once.

    With recomputation, the planner may group several blocks if the head stores more than a block, and with
    `zero=2` a stage has four segments. The calculator has one segment per block.
    """
    for _ in range(POINTS // 50):
        heads, blocks, recompute = rng.choice([4, 8]), rng.choice([1, 2]), rng.random() < 0.5
        hidden = heads * rng.choice([8, 16, 24])
        model = {
            "layers": 4 * blocks,
            "hidden": hidden,
            "heads": heads,
            "sequence": rng.choice([8, 16, 48]),
            "vocabulary": rng.randrange(50, 12 * hidden if recompute else 3000),
            "precision": rng.choice(["bf16", "fp32"]),
            "recompute": recompute,
        }
        rows, total = rng.choice([1, 2, 4]), 2 ** rng.randrange(3, 6)
        for _ in range(50):
            microbatches = 2 ** rng.randrange(4)
            yield model | {
                "data": rows,
                "pipeline": rng.choice([1, 2, 4]),
                "tensor": rng.choice([1, 2, 4]),
                "zero": rng.choice([0, 1] if model["recompute"] else [0, 1, 2]),
                "microbatches": microbatches,
                "microbatch": max(1, total // microbatches),
            }


def predicted_bytes(point, tasks):
    batch = point["microbatch"] * point["microbatches"] * point["data"]
    names = ("layers", "hidden", "heads", "sequence", "vocabulary")
    key = (*(point[name] for name in names), batch, point["precision"], point["recompute"])
    if key not in tasks:
        is_half = point["precision"] == "bf16"
        tasks[key] = pl.models.GPT(
            *key[:6],
            dtype=torch.bfloat16 if is_half else torch.float32,
            master_dtype=torch.float32 if is_half else None,
            recompute=point["recompute"],
        )
    words = ",".join(f"{name}={point[name]}" for name in ("pipeline", "tensor", "zero", "microbatches"))
    workers = point["data"] * point["pipeline"] * point["tensor"]
    cluster = pl.Simulated(workers=workers, math="none", device=pl.devices.A100)
    return pl.predict(tasks[key], f"hybrid:{words}", cluster).memory_bytes


@pytest.mark.slow
def test_memory_is_that_of_the_planner(page):
    points = list(memory_points(random.Random(1)))
    tasks = {}
    found = [each["total"] for each in computed(page, "memory", points)]
    for point, total in zip(points, found, strict=True):
        assert total == pytest.approx(predicted_bytes(point, tasks), rel=CLOSE), point


def test_pipelines_are_timed_like_the_orders(page):
    rng = random.Random(2)
    points = [
        {
            "stages": rng.randrange(1, 9),
            "microbatches": rng.randrange(1, 25),
            "order": rng.choice(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2"]),
            "chunks": rng.randrange(2, 4),
            **{name: rng.uniform(0.1, 5) for name in ("forward", "inputs", "weights")},
        }
        for _ in range(POINTS)
    ]
    for point, found in zip(points, computed(page, "pipeline", points), strict=True):
        chunks = point["chunks"] if point["order"] == "interleaved" else 1
        order = pipeline_order(point["order"], point["stages"], point["microbatches"], chunks)
        seconds = {"F": point["forward"], "B": point["inputs"], "W": point["weights"]}
        timing = time_order(
            order,
            lambda action, _, seconds=seconds: sum(seconds[part] for part in action.phase.value),
            chunks=chunks,
        )
        assert found["seconds"] == pytest.approx(timing.cost_s, rel=CLOSE), point
        assert found["bubble"] == pytest.approx(timing.bubble, rel=CLOSE, abs=1e-9), point
        assert found["activations"] == list(activations(order)), point


TIMES = {
    "constant": lambda point: pl.times.Constant(point["mean"]),
    "exponential": lambda point: pl.times.Exponential(point["mean"]),
    "shifted": lambda point: pl.times.ShiftedExponential(point["shift"], point["mean"]),
    "pareto": lambda point: pl.times.Pareto(point["minimum"], point["shape"]),
}


def test_updates_and_staleness_are_those_of_the_theory(page):
    rng = random.Random(3)
    points = []
    for _ in range(POINTS):
        workers = rng.randrange(1, 200)
        sizes = {name: rng.uniform(0.01, 3) for name in ("mean", "shift", "minimum")}
        kind, shape = rng.choice(sorted(TIMES)), rng.uniform(1.05, 6)
        k = rng.randrange(1, workers + 1)
        points.append({"distribution": kind, "workers": workers, "k": k, "shape": shape, **sizes})
    for point, found in zip(points, computed(page, "stragglers", points), strict=True):
        times = TIMES[point["distribution"]](point)
        for variant in ("sync", "k-sync", "k-async", "async"):
            seconds = seconds_per_update(variant, times, point["workers"], point["k"])
            expected = seconds if seconds is None else pytest.approx(seconds, rel=CLOSE)
            assert number(found[variant]["seconds"]) == expected, (variant, point)
            staleness = mean_staleness(variant, point["workers"], point["k"])
            assert found[variant]["staleness"] == pytest.approx(staleness, rel=CLOSE), (variant, point)


CODECS = ["none", "none", "bf16", "fp16", "int8", "int4", "sign", "topk-0.01", "topk-0.1"]


def bandwidth_points(rng):
    for _ in range(POINTS):
        algorithm = rng.choice(["ring", "tree"])
        workers = rng.randrange(1, 24) if algorithm == "ring" else 2 ** rng.randrange(5)
        yield {
            "parameters": workers * 256 * rng.randrange(200, 20_000),
            "number": rng.choice([2, 4]),
            "workers": workers,
            "compute": rng.uniform(0.001, 1),
            "gigabits": rng.uniform(0.1, 400),
            "latency": rng.uniform(0, 0.001),
            "algorithm": algorithm,
            "period": rng.randrange(1, 100),
            "codec": rng.choice(CODECS),
            "share": rng.uniform(0.01, 0.5),
        }


def exchange(point):
    """Return the bytes that the busiest link carries and the seconds of an exchange, by the timed schedules."""
    workers, count = point["workers"], point["parameters"]
    dtype = torch.float32 if point["number"] == 4 else torch.bfloat16
    codec = codec_of(point["codec"])

    def coded(length):
        tensor = torch.empty(length, dtype=dtype, device="meta")
        return (tensor if codec is None else codec.encode(tensor)).nbytes

    if codec is None or isinstance(codec, MessageCodec):
        pattern, algorithm = "all-reduce", point["algorithm"]
        chunks = workers if algorithm == "ring" else 1
        total = chunks * coded(count // chunks)
    else:
        pattern, algorithm, total = "all-gather", "ring", workers * coded(count)
    if workers == 1:
        return 0.0
    timing = time_schedule(
        group_plan(pattern, algorithm, workers),
        length=total,
        itemsize=1,
        arrivals_s=0.0,
        latency_s=point["latency"],
        seconds_per_byte=8 / (point["gigabits"] * 1e9),
    )
    return float(timing.finish_s.max())


def test_communication_takes_the_seconds_of_the_schedules(page):
    points = list(bandwidth_points(random.Random(4)))
    needed = []
    for point, found in zip(points, computed(page, "bandwidth", points), strict=True):
        expected = exchange(point) / point["period"]
        assert found["seconds"] == pytest.approx(expected, rel=CLOSE), point
        share = expected / (expected + point["compute"])
        assert found["share"] == pytest.approx(share, rel=CLOSE), point
        needed.append(point | {"gigabits": number(found["needed"])})
    reachable = [point for point in needed if 0 < point["gigabits"] < math.inf]
    assert len(reachable) > POINTS / 4
    for point, found in zip(reachable, computed(page, "bandwidth", reachable), strict=True):
        assert found["share"] == pytest.approx(point["share"], rel=CLOSE), "the needed bandwidth is enough"
