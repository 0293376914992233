import errno
import gzip
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from disks import files_of_at_most
from old_runs import without_message_ids
from refusals import has, raised, refused

from paceline.errors import SaveError
from paceline.trace import Kind, Recorder, Spans, Trace
from paceline.trace.spans import NO_MESSAGE, message_id


def spans(rank: int, count: int = 3, role: str = "worker") -> Spans:
    recorder = Recorder(rank, role, host=rank // 2)
    for i in range(count):
        recorder.add(i % 8, i * 0.1, i * 0.1 + 0.1, rank, 10 * i, i)
    return recorder.pack()


def sample() -> Trace:
    return Trace([spans(2, role="server"), spans(0), spans(1, count=0)], 1.5)


def through_a_file(trace: Trace) -> Trace:
    file = io.BytesIO()
    np.savez(file, **trace.to_arrays())
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return Trace.from_arrays(arrays)


def test_ranks_are_kept_in_order() -> None:
    assert [each.rank for each in sample().spans] == [0, 1, 2]


def test_arrays_bring_back_the_same_trace_without_pickle() -> None:
    for trace in (sample(), Trace([], 0.0), Trace([spans(0, 0)], 1.0)):
        back = through_a_file(trace)
        assert back == trace
        assert [each.role for each in back.spans] == [each.role for each in trace.spans]
        assert back.summary() == trace.summary()


def test_a_trace_of_a_version_without_message_ids_is_read_without_causes() -> None:
    recorder = Recorder(0, "worker")
    recorder.add(Kind.WAIT, 0.0, 1.0, 1, 0, 0, message_id(1, 0))
    trace = Trace([recorder.pack()], 1.5)
    found = Trace.from_arrays(without_message_ids(trace.to_arrays()))
    assert trace.has_causes
    assert not found.has_causes
    assert found.spans[0].array["message"].tolist() == [NO_MESSAGE]
    assert found.summary() == trace.summary()


def test_a_trace_without_waits_has_all_of_their_causes() -> None:
    assert Trace([], 1.0).has_causes


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    arrays = sample().to_arrays()
    with refused("arrays"):
        Trace.from_arrays({name: arrays[name] for name in arrays if name != "counts"})
    with refused("arrays"):
        Trace.from_arrays(arrays | {"counts": arrays["counts"] + 1})
    with refused("arrays"):
        Trace.from_arrays(arrays | {"roles": arrays["roles"][1:]})


def test_equal_traces_give_equal_files(tmp_path: Path) -> None:
    for name in ("a.json", "b.json", "a.json.gz", "b.json.gz"):
        sample().save(tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_a_name_that_ends_in_gz_is_compressed(tmp_path: Path) -> None:
    sample().save(str(tmp_path / "trace.json"))
    sample().save(str(tmp_path / "trace.json.gz"))
    plain = (tmp_path / "trace.json").read_bytes()
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == plain
    document = json.loads(plain)
    assert document["otherData"] == {"seconds": 1.5, "ranks": 3}
    assert sum(event["ph"] == "X" for event in document["traceEvents"]) == 6


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_trace_has_a_finite_length(seconds: float) -> None:
    with refused("seconds", bound=has(0)):
        Trace([], seconds)


def test_a_rank_is_in_a_trace_once() -> None:
    with refused("spans", [1, 1]):
        Trace([spans(1), spans(1)], 1.0)


def test_a_trace_that_does_not_fit_on_the_disk_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    for write in (sample().save, sample().draw):
        with files_of_at_most(100), raised(SaveError, filename=str(path), errno=errno.EFBIG):
            write(path)
        assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("trace.json", "old")]


@pytest.mark.parametrize(
    "changes",
    [
        {"roles": np.array([1, 2, 3])},
        {"ranks": np.zeros((3, 1), dtype=np.int64)},
        {"counts": np.array([2**63 - 1, 2**63 - 1, 8])},
        {"hosts": np.array([0, -1, 0])},
        {"seconds": np.array(["1.5"])},
        {"clock_residual_s": np.array([0.0, 0.0])},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_arrays_of_another_kind_are_refused(changes: dict[str, np.ndarray]) -> None:
    with refused("arrays"):
        Trace.from_arrays(sample().to_arrays() | changes)


def test_a_role_cannot_take_command_of_a_terminal() -> None:
    arrays = sample().to_arrays() | {"roles": np.array(["worker", "\x1b[2J", "server"])}
    assert Trace.from_arrays(arrays).spans[1].role == "\ufffd[2J"
