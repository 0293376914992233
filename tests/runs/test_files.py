"""Damaged or malicious saved runs: each is read, or refused with one error that names the file."""

import hashlib
import io
import json
import os
import random
import shutil
import socket
import zipfile

import numpy as np
import pytest
from chosen_runs import run_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from old_runs import make_old
from refusals import has, raised
from tasks import a_task, samples, simulated

import paceline as pl
from paceline.analysis.comparison.comparison import Comparison
from paceline.analysis.comparison.saved import load_entries
from paceline.errors import ConfigurationError, DamagedError, PacelineError
from paceline.report.page import page
from paceline.runs.run import Run

FILES = ("run.json", "history.jsonl", "spans.npz", "model.safetensors")


def distance(outputs, targets):
    return -float((outputs - targets).abs().mean())


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory):
    """Files of a run with all kinds of content and without checksums, so that their content must be validated."""
    task = a_task(test=samples(6), metric=distance, target=-10.0)
    folder = tmp_path_factory.mktemp("whole")
    pl.train(task, "k-async:k=2", simulated(3), steps=3).save(folder)
    make_old(folder)
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture
def saved(whole_files, tmp_path):
    return put(whole_files, tmp_path / "run")


def put(files, folder):
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def assert_damaged(folder, name, *facts):
    with raised(DamagedError, folder=str(folder), file=name, reason=has(*facts)) as caught:
        Run.load(folder)
    assert len(str(caught.value)) < 1000


# Text

DEEP = b"[" * 100_000
NOT_JSON = {
    "nothing": b"",
    "deep": DEEP,
    "deep object": b'{"a":' * 100_000,
    "not UTF-8": b'{"format": 1, "strategy": "\xff"}',
    "half": b'{"format": 1, "strat',
    "other kind": b"[1]",
    "number of 5,000 digits": b'{"format": ' + b"9" * 5000 + b"}",
    "zeros": bytes(100),
}


@pytest.mark.parametrize("data", NOT_JSON.values(), ids=NOT_JSON)
def test_a_manifest_that_is_no_object_is_refused(saved, data):
    (saved / "run.json").write_bytes(data)
    assert_damaged(saved, "run.json")


@pytest.mark.parametrize("data", [data or b"\n" for data in NOT_JSON.values()], ids=NOT_JSON)
def test_a_history_with_a_line_that_is_no_object_is_refused(saved, data):
    with open(saved / "history.jsonl", "ab") as out:
        out.write(data)
    assert_damaged(saved, "history.jsonl")


KEYS = (
    "strategy",
    "cluster",
    "seed",
    "seconds",
    "bytes_sent",
    "messages_sent",
    "staleness",
    "lost",
    "trainable",
)
WRONG = {
    "strategy": 3,
    "cluster": ["x"],
    "seed": -1,
    "seconds": float("nan"),
    "bytes_sent": [10**400],
    "messages_sent": {"0": 1},
    "staleness": {"one": 1},
    "lost": [[1, 2, 3]],
    "peer_metrics": {"0": "high"},
    "target": "high",
    "better": "up",
    "fingerprint": {"samples": 24},
    "environment": {"torch": 2},
    "trainable": [1],
    "format": True,
}


@pytest.mark.parametrize("key", ["format", *KEYS])
def test_a_manifest_without_a_key_is_refused_by_the_key(saved, key):
    manifest = json.loads((saved / "run.json").read_bytes())
    del manifest[key]
    (saved / "run.json").write_text(json.dumps(manifest))
    assert_damaged(saved, "run.json", key)


@pytest.mark.parametrize("key", WRONG)
def test_a_value_of_another_kind_is_refused_by_its_key(saved, key):
    manifest = json.loads((saved / "run.json").read_bytes())
    (saved / "run.json").write_text(json.dumps(manifest | {key: WRONG[key]}))
    assert_damaged(saved, "run.json", key)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 1.5},
        {"seconds": None},
        {"loss": "low"},
        {"metric": []},
        {"samples": -1},
        {"extra": {"a": None}},
        {"epoch": "one"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_record_with_a_value_of_another_kind_is_refused(saved, change):
    first, *rest = (saved / "history.jsonl").read_text().splitlines()
    lines = [json.dumps(json.loads(first) | change), *rest]
    (saved / "history.jsonl").write_text("\n".join(lines))
    assert_damaged(saved, "history.jsonl", next(iter(change)))


# Arrays


def spans_with(folder, **changes):
    with np.load(folder / "spans.npz") as arrays:
        changed = {**arrays, **changes}
    np.savez_compressed(folder / "spans.npz", **changed)


WRONG_ARRAYS = {
    "ranks of another kind": {"ranks": np.array([0.0, 1.0, 2.0, 3.0])},
    "too few roles": {"roles": np.array(["worker"])},
    "negative counts": {"counts": np.array([-1, 1, 0, 0])},
    "counts that overflow": {"counts": np.array([2**63 - 1, 2**63 - 1, 2, 0])},
    "spans of another kind": {"spans": np.zeros(3)},
    "a list of seconds": {"seconds": np.array([1.0])},
    "seconds that are no number": {"seconds": np.array(np.nan)},
    "a rank twice": {"ranks": np.array([0, 1, 1, 3])},
    "a rank that the run has not": {"ranks": np.array([0, 1, 2, 2**31 - 1])},
}


@pytest.mark.parametrize("changes", WRONG_ARRAYS.values(), ids=WRONG_ARRAYS)
def test_spans_that_do_not_fit_together_are_refused(saved, changes):
    spans_with(saved, **changes)
    assert_damaged(saved, "spans.npz")


def test_spans_of_a_peer_that_the_run_has_not_are_refused(saved):
    with np.load(saved / "spans.npz") as arrays:
        spans = arrays["spans"].copy()
    spans["peer"][0] = 2**31 - 1
    spans_with(saved, spans=spans)
    assert_damaged(saved, "spans.npz", 2147483647, 4)


def test_the_micro_batch_of_a_pass_is_not_taken_for_a_rank(tmp_path):
    run = pl.train(a_task(), "pipeline:microbatches=4", simulated(2), steps=2)
    run.save(tmp_path)
    loaded = Run.load(tmp_path)
    assert loaded.trace.bubble == run.trace.bubble
    assert loaded.holds == run.holds != []


@pytest.mark.parametrize("key", ["memory", "holds"])
def test_what_is_said_of_some_ranks_only_is_refused(saved, key):
    manifest = json.loads((saved / "run.json").read_bytes())
    value = {"memory": {"total": 1}, "holds": "stage 0 of 2: layer 0"}[key]
    (saved / "run.json").write_text(json.dumps(manifest | {key: [value]}))
    assert_damaged(saved, "run.json", key, 4, 1)


def test_objects_are_never_unpickled(saved):
    spans_with(saved, roles=np.array([print, 1, 2, 3], dtype=object))
    assert_damaged(saved, "spans.npz", "allow_pickle=False")


def test_a_small_file_that_unpacks_to_much_is_refused(saved):
    """The size in the archive's directory is what a reader would go by."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("spans.npy", b"")
    data = bytearray(packed.getvalue())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = (2**32 - 2).to_bytes(4, "little")
    many = [data[entry : data.rindex(b"PK\x05\x06")]] * 3
    end = bytearray(data[data.rindex(b"PK\x05\x06") :])
    end[8:12] = (3).to_bytes(2, "little") * 2
    end[12:16] = sum(map(len, many)).to_bytes(4, "little")
    (saved / "spans.npz").write_bytes(bytes(data[:entry]) + b"".join(many) + bytes(end))
    assert_damaged(saved, "spans.npz")


def lying_header(**entry):
    header = json.dumps({"w": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16], **entry}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


MODELS = {
    "nothing": b"",
    "cut in its header": lying_header()[:20],
    "cut in its data": lying_header()[:-1],
    "a header of 2**60 bytes": (2**60).to_bytes(8, "little") + bytes(100),
    "a shape of 2**60": lying_header(shape=[2**60]),
    "shapes that overflow": lying_header(shape=[2**32, 2**32]),
    "data beyond the end": lying_header(data_offsets=[0, 2**40], shape=[2**37]),
    "an unknown kind": lying_header(dtype="F65"),
    "a deep header": (100_000).to_bytes(8, "little") + DEEP,
    "another model": lying_header(),
}


@pytest.mark.parametrize("data", MODELS.values(), ids=MODELS)
def test_a_model_whose_header_lies_is_refused(saved, data):
    (saved / "model.safetensors").write_bytes(data)
    assert_damaged(saved, "model.safetensors")


def test_a_file_in_the_place_of_another_is_refused(saved):
    for name in ("spans.npz", "model.safetensors"):
        keep = (saved / name).read_bytes()
        shutil.copy(saved / "run.json", saved / name)
        assert_damaged(saved, name)
        (saved / name).write_bytes(keep)


# Paths that are not files


def as_a_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, as_a_socket, lambda path: path.symlink_to("/dev/zero")],
    ids=["pipe", "socket", "device"],
)
def test_what_would_block_or_never_end_is_refused(saved, monkeypatch, name, make):
    monkeypatch.chdir(saved)
    (saved / name).unlink()
    make(saved / name)
    assert_damaged(saved, name)


def test_a_link_out_of_the_folder_is_not_followed(saved):
    shutil.move(saved / "history.jsonl", saved.parent / "elsewhere")
    (saved / "history.jsonl").symlink_to(saved.parent / "elsewhere")
    assert_damaged(saved, "history.jsonl")


# Checksums


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sealed")
    run_of("sync").save(folder)
    return folder


def test_the_manifest_has_the_checksum_of_every_file(sealed):
    listed = json.loads((sealed / "run.json").read_bytes())["files"]
    for path in sealed.iterdir():
        if path.name != "run.json":
            assert listed.pop(path.name) == {
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
    assert not listed


@pytest.mark.parametrize("name", FILES)
def test_random_flipped_bits_and_cuts_are_refused_by_the_files_name(sealed, tmp_path, name):
    folder = shutil.copytree(sealed, tmp_path / "copy")
    content, chance = (sealed / name).read_bytes(), random.Random(0)
    damaged = [content[:length] for length in range(0, len(content), 4096)]
    for _ in range(100):
        place, bit = chance.randrange(len(content)), chance.randrange(8)
        damaged.append(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
    for each in damaged:
        (folder / name).write_bytes(each)
        with pytest.raises(ConfigurationError) as caught:
            Run.load(folder)
        assert getattr(caught.value, "file", "run.json") == name  # a flipped bit can make it a newer format
    (folder / name).write_bytes(content)
    Run.load(folder)


def test_a_best_model_that_an_older_run_left_is_not_taken_for_this_ones(sealed, tmp_path):
    folder = shutil.copytree(sealed, tmp_path / "copy")
    shutil.copy(folder / "model.safetensors", folder / "best.safetensors")
    assert Run.load(folder).best_state == {}


# Anything

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([-1, 0, 1, 2**31, 2**63, 10**400, 1e308, 5e-324, float("nan"), float("inf"), -1e308])
    | st.sampled_from(["", "x", "\ud800", "\x1b[2J", "<script>alert(1)</script>", "7"]),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(["0", "a"]), values, max_size=2)
    ),
    max_leaves=4,
)


def places(value, path=()):
    """Yield the path of each value in a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def replace_a_value(data, document):
    path = data.draw(st.sampled_from(places(document)[1:]))
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = data.draw(JSON)


def replaced(data, name, content):
    if name == "run.json":
        document = json.loads(content)
        replace_a_value(data, document)
        return json.dumps(document).encode()
    lines = [json.loads(line) for line in content.splitlines()]
    replace_a_value(data, lines)
    return "\n".join(json.dumps(line) for line in lines).encode()


def flipped(data, content):
    for _ in range(data.draw(st.integers(1, 4))):
        place, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
        content = content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]
    return content


def damaged(data, name, content):
    how = data.draw(st.sampled_from(["flip", "cut", *(["replace"] * 3 if name in FILES[:2] else [])]))
    if how == "replace":
        return replaced(data, name, content)
    return flipped(data, content) if how == "flip" else content[: data.draw(st.integers(0, len(content) - 1))]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_in_the_files_a_page_is_made_of_them_or_they_are_refused(whole_files, tmp_path, data):
    name = data.draw(st.sampled_from(FILES))
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    put({**whole_files, name: damaged(data, name, whole_files[name])}, folder)
    try:
        entries = load_entries([folder])
    except PacelineError:
        return
    page(entries, title="any").encode()
    found = Comparison(entries=tuple(entries))
    json.dumps(found.as_dict(), allow_nan=False)
    assert str(found).encode()


HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x1b[2J"


def test_no_text_of_a_saved_run_is_markup_in_its_page(tmp_path):
    run = run_of("sync")
    run.strategy = run.cluster = HOSTILE
    run.environment = dict.fromkeys([*run.environment, "hosts"], HOSTILE)
    run.save(tmp_path)
    make_old(tmp_path)
    spans_with(tmp_path, roles=np.array([HOSTILE] * 5))
    text = page(load_entries([tmp_path]), title=HOSTILE.replace("\x1b", ""))
    assert "<img" not in text
    assert "\x1b" not in text
    assert text.count("</script>") == page(load_entries([tmp_path]), title="x").count("</script>")
    assert text.count("</script>") == text.count("<script")
