import math

import pytest
import torch

import paceline as pl
from paceline.bench.predict import predict
from paceline.bench.spec import Spec

LINK = pl.Link("1Gbps", "50us")
SIZES = (4 * 2**10, 512 * 2**10, 64 * 2**20)
A, B = LINK.latency_s, LINK.seconds_per_byte

# TRUTH.md: n bytes, p ranks. Numbers that are not powers of two are used only if the formula holds for them.
FORMULAS = {
    "reduce-broadcast": lambda n, p: 2 * (p - 1) * n * B + 2 * A,
    "tree": lambda n, p: 2 * math.log2(p) * (A + n * B),
    "all-to-all": lambda n, p: (p - 1) * n * B + A,
    "naive-ring": lambda n, p: 2 * (p - 1) * (A + n * B),
    "ring": lambda n, p: 2 * (p - 1) * A + 2 * n * (p - 1) / p * B,
    "recursive-doubling": lambda n, p: math.log2(p) * (A + n * B),
    "halving-doubling": lambda n, p: 2 * math.log2(p) * A + 2 * n * (p - 1) / p * B,
}
ANY_SIZE = ("reduce-broadcast", "all-to-all", "naive-ring", "ring")


def predicted(pattern, workers, **changes):
    given = {"begin_bytes": SIZES[0], "end_bytes": SIZES[-1], "factor": 128}
    spec = Spec(pattern=pattern, workers=workers, simulated=True, **(given | changes))
    return predict(spec, pl.Simulated(workers=workers, link=LINK))


CASES = [(name, p) for name in FORMULAS for p in (2, 4, 8, 16)] + [
    (n, p) for n in ANY_SIZE for p in (3, 7, 12)
]


@pytest.mark.parametrize(("algorithm", "workers"), CASES)
def test_predicted_seconds_are_those_of_the_closed_form(algorithm, workers):
    for row in predicted("all-reduce", workers, algorithms=(algorithm,)).rows:
        assert row.seconds == pytest.approx(FORMULAS[algorithm](row.size_bytes, workers), rel=0.01)


@pytest.mark.parametrize("pattern", ["all-gather", "reduce-scatter", "all-to-all"])
def test_a_pattern_of_chunks_takes_half_a_ring(pattern):
    for row in predicted(pattern, 8).rows:
        assert row.seconds == pytest.approx(7 * A + row.size_bytes * 7 / 8 * B, rel=0.01)


def test_bus_bandwidth_of_a_large_ring_is_the_links():
    last = predicted("all-reduce", 8, algorithms=("ring",)).rows[-1]
    assert last.busbw_bytes_per_s == pytest.approx(LINK.bytes_per_s, rel=0.01)
    assert last.algbw_bytes_per_s == last.size_bytes / last.seconds


@pytest.mark.parametrize("algorithm", ["auto", *FORMULAS, "hierarchical"])
def test_the_simulated_cluster_takes_as_long_message_by_message(algorithm):
    # A power of two. Otherwise messages arrive at a port at the same time, and the two methods may order them
    # differently.
    rows = predicted("all-reduce", 8, algorithms=(algorithm,), end_bytes=SIZES[1]).rows

    async def program(ctx):
        ends = []
        for row in rows:
            start_s = ctx.now()
            tensor = torch.empty(row.size_bytes // 4, device="meta")
            await pl.collectives.all_reduce(ctx, tensor, algorithm)
            ends.append(ctx.now() - start_s)
            await ctx.sleep(100.0 - ctx.now() % 100.0)
        return ends

    by_rank = pl.run_program(program, pl.Simulated(workers=8, link=LINK)).results
    assert [max(ends) for ends in zip(*by_rank, strict=True)] == pytest.approx([r.seconds for r in rows])


def test_a_thousand_workers_are_predicted():
    report = predicted("all-reduce", 1000)
    assert len(report.rows) == len(SIZES) * len(report.spec.algorithms)
    ring = next(row for row in report.rows if (row.algorithm, row.size_bytes) == ("ring", SIZES[-1]))
    assert ring.seconds == pytest.approx(FORMULAS["ring"](SIZES[-1], 1000), rel=0.01)


def test_a_barrier_takes_a_latency_a_doubling():
    (row,) = predicted("barrier", 16).rows
    assert row.seconds == pytest.approx(4 * A)


def test_each_size_is_told_when_it_begins():
    places = []
    spec = Spec(pattern="all-reduce", workers=2, simulated=True, end_bytes=2**14)
    predict(spec, pl.Simulated(workers=2), places.append)
    assert places == [0, 1]
