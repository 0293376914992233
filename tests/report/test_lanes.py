import base64
import itertools
import zlib

import numpy as np
import pytest
from report.cases import handmade, many_spans, trained

from paceline.report.lanes import pack_lanes, span_limits
from paceline.trace import Kind, Trace


def packed(run, limit=10**6):
    ranks = [each.rank for each in run.trace.spans]
    return pack_lanes(run.trace, run.trace.summary(), ranks, limit)


def unpacked(lanes):
    """What `assets/spans.js` makes of it, in numpy: start, end, step, peer, bytes and kind of every span."""
    data = zlib.decompress(base64.b64decode(lanes["data"]))
    count = sum(lanes["counts"])
    columns = [
        np.frombuffer(data, kind, count, 4 * count * n)
        for n, kind in enumerate(["<u4", "<u4", "<i4", "<i4", "<u4", "u1"])
    ]
    starts = np.cumsum(columns[0], dtype=np.uint32).astype(np.float64)
    sizes = np.array(lanes["sizes"], dtype=np.int64)
    return {
        "start_s": starts * lanes["tick"],
        "end_s": (starts + columns[1]) * lanes["tick"],
        "step": np.cumsum(columns[2], dtype=np.int32),
        "peer": columns[3],
        "nbytes": sizes[columns[4]] if count else sizes,
        "kind": columns[5],
    }


def with_length(run):
    """The spans that have a length, by start within each rank."""
    arrays = [each.array[np.argsort(each.array["start_s"], kind="stable")] for each in run.trace.spans]
    return np.concatenate([array[array["end_s"] > array["start_s"]] for array in arrays])


@pytest.mark.parametrize("strategy", ["k-sync:k=3", "all-reduce:algorithm=ring"])
def test_every_span_that_has_a_length_comes_back(strategy):
    run = trained(strategy)
    found, expected = unpacked(packed(run)), with_length(run)
    for name in ("step", "peer", "nbytes", "kind"):
        assert found[name].tolist() == expected[name].tolist()
    for name in ("start_s", "end_s"):
        assert np.abs(found[name] - expected[name]).max() <= run.trace.seconds / 2**32


def test_lanes_say_whose_they_are():
    run = trained("k-sync:k=3")
    lanes = packed(run)
    assert [rank["role"] for rank in lanes["ranks"]] == ["worker"] * 4 + ["server"]
    assert lanes["counts"] == [
        int((each.array["end_s"] > each.array["start_s"]).sum()) for each in run.trace.spans
    ]
    assert [sum(parts) for parts in lanes["parts"]] == pytest.approx([1] * 5, abs=1e-4)


def test_only_the_ranks_asked_for_are_packed():
    run = trained("k-sync:k=3")
    lanes = pack_lanes(run.trace, run.trace.summary(), [1, 4], 10**6)
    assert [rank["rank"] for rank in lanes["ranks"]] == [1, 4]


def test_beyond_the_limit_the_spans_are_those_of_the_beginning():
    run = many_spans(4000)
    lanes = packed(run, limit=1000)
    found = unpacked(lanes)
    assert 1000 <= len(found["kind"]) <= 1004
    assert found["start_s"].max() <= lanes["until"] + lanes["tick"] < lanes["seconds"]
    starts = np.concatenate([each.array["start_s"] for each in run.trace.spans])
    assert np.count_nonzero(starts < lanes["until"]) == 1000


def test_spans_are_cut_to_the_run():
    found = unpacked(packed(handmade([(0, Kind.COMPUTE, -1.0, 4.0), (1, Kind.WAIT, 9.0, 12.0)])))
    assert found["start_s"].tolist() == pytest.approx([0.0, 9.0])
    assert found["end_s"].tolist() == pytest.approx([4.0, 10.0])


def test_a_run_of_no_time_has_empty_lanes():
    run = handmade([(0, Kind.UPDATE, 0.0, 0.0)], seconds=0.0)
    assert packed(run)["counts"] == [0, 0]
    assert pack_lanes(Trace([], 0.0), Trace([], 0.0).summary(), [], 10)["ranks"] == []


def test_small_runs_leave_their_room_to_large_ones():
    assert span_limits([10, 500, 500], most=610) == [10, 300, 300]
    assert span_limits([500, 10, 500], most=10_000) == [500, 10, 500]
    assert span_limits([], most=10) == []


@pytest.mark.parametrize("counts", list(itertools.product([0, 7, 100], repeat=3)))
def test_limits_never_exceed_the_page_or_the_run(counts):
    limits = span_limits(counts, most=120)
    assert sum(limits) <= 120
    assert all(limit <= count for limit, count in zip(limits, counts, strict=True))
