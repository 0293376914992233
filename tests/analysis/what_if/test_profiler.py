"""Traces of torch.profiler, written by torch.profiler itself."""

import gzip
import json

import pytest
import torch
import torch.distributed as dist
from refusals import has, refused
from torch.profiler import ProfilerActivity, profile, schedule

from paceline.analysis.what_if.profiler import ProfiledRank, ProfiledStep, read_profiles, what_if_profiled

STEPS = 2


def write_trace(path, *, products=1):
    """Profile steps of a product and its backward pass. A rank with more products is slower."""
    left, right = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8)
    with profile(
        activities=[ProfilerActivity.CPU],
        acc_events=True,
        schedule=schedule(wait=0, warmup=1, active=STEPS),
        on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
    ) as found:
        for _ in range(STEPS + 1):
            for _ in range(products):
                (left @ right).sum().backward()
            found.step()


@pytest.fixture
def traces(tmp_path):
    for rank in range(3):
        write_trace(tmp_path / f"rank{rank}.json{'.gz' if rank else ''}", products=20 if rank == 1 else 1)
    return tmp_path


def test_real_traces_of_several_ranks_are_read_and_compared(traces):
    profiles = read_profiles([traces])
    assert [each.rank for each in profiles] == [0, 1, 2]
    assert all(len(each.steps) == STEPS for each in profiles)
    for each in profiles:
        for step in each.steps.values():
            assert 0 < step.computing_s <= step.seconds
            assert ("aten::matmul", 1) in step.operations_s
    found = what_if_profiled(profiles)
    assert found.ranks == (0, 1, 2)
    assert found.steps == STEPS
    counts = [max(len(step.operations_s) for step in each.steps.values()) for each in profiles]
    assert counts[1] > 10 * counts[0]


def test_parts_of_an_operation_are_not_counted_again(traces):
    (first, *_) = read_profiles([traces])
    names = {name for step in first.steps.values() for name, _ in step.operations_s}
    assert "aten::mm" not in names  # it is a part of aten::matmul


def test_the_rank_is_that_of_torch_distributed(tmp_path):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    try:
        write_trace(tmp_path / "one.json")
    finally:
        dist.destroy_process_group()
    write_trace(tmp_path / "rank2.json")
    assert [each.rank for each in read_profiles([tmp_path])] == [2, 5]


def rank(number, *steps):
    made = [
        ProfiledStep(seconds=seconds, operations_s={(name, 1): taken for name, taken in operations.items()})
        for seconds, operations in steps
    ]
    return ProfiledRank(rank=number, file=f"rank{number}.json", steps=dict(enumerate(made)))


def test_each_operation_takes_its_median_and_the_rest_is_that_of_the_rank_that_waits_least():
    fast = (1.0, {"forward": 0.2, "backward": 0.3})
    found = what_if_profiled(
        [rank(0, fast), rank(1, (1.0, {"forward": 0.2, "backward": 0.7})), rank(2, fast)]
    )
    assert (found.slow_rank, found.factor) == (1, pytest.approx(1.8))
    assert found.causes == (("backward", pytest.approx(0.4)),)
    # Rank 1 waits for nobody: a tenth of a second is communication.
    assert (found.recorded_s, found.step_s) == (1.0, pytest.approx(0.6))
    assert has(1, "1.80", "backward") == str(found)


def test_traces_without_ranks_are_refused_with_what_was_found(tmp_path):
    write_trace(tmp_path / "one.json")
    with refused("traces", has("one.json", "traceEvents")):
        read_profiles([tmp_path])


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"no json", ["rank0.json"]),
        (b"[1, 2]", ["list"]),
        (b'{"loss": 3}', ["loss", "traceEvents"]),
        (b'{"traceEvents": [{"ph": "X", "cat": "python", "ts": 1, "dur": 2}]}', ["python", "cpu_op"]),
        (b'{"traceEvents": []}', ["none", "cpu_op"]),
        (b"\x1f\x8b broken", ["rank0.json"]),
    ],
)
def test_other_files_are_refused_with_what_was_found(tmp_path, content, facts):
    (tmp_path / "rank0.json").write_bytes(content)
    with refused("traces", has(*facts)):
        read_profiles([tmp_path])


def test_one_rank_or_the_same_rank_twice_is_refused(tmp_path):
    write_trace(tmp_path / "rank0.json")
    with refused("traces"):
        read_profiles([tmp_path])
    content = json.loads((tmp_path / "rank0.json").read_text())
    (tmp_path / "again-rank0.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    with refused("traces", has("rank0.json", "again-rank0.json.gz")):
        read_profiles([tmp_path])


def test_traces_of_different_steps_are_refused():
    first, second = rank(0, (1.0, {"a": 0.5})), rank(1, (1.0, {"a": 0.5}))
    moved = ProfiledRank(rank=1, file="rank1.json", steps={7: second.steps[0]})
    with refused("traces", has(0, 7)):
        what_if_profiled([first, moved])
