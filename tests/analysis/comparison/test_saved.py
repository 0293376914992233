import dataclasses
import errno
import json
import os

import pytest
from chosen_runs import entry, run_of
from disks import files_of_at_most
from refusals import has, raised, refused

from paceline.analysis.comparison.entry import Entry
from paceline.analysis.comparison.saved import SavedComparison, load_entries
from paceline.errors import DamagedError, SaveError


@pytest.fixture(scope="module")
def runs():
    names = {"sync": run_of("sync"), "k-sync:k=3": run_of("k-sync:k=3"), "single": run_of("single")}
    return names | {"wide": run_of("sync", workers=6), "alone": run_of("single", workers=6)}


def save_entries(entries, directory):
    SavedComparison(directory).save(entries)


def summary_of(entries):
    return [(each.name, len(each.runs), each.error) for each in entries]


def test_a_saved_comparison_is_read_as_it_was(runs, tmp_path):
    saved = [entry(runs["sync"], runs["sync"]), Entry(name="async", error="why"), entry(runs["k-sync:k=3"])]
    save_entries(saved, tmp_path)
    assert summary_of(load_entries([tmp_path])) == [
        ("sync", 2, None),
        ("k-sync:k=3", 1, None),
        ("async", 0, "why"),
    ]
    assert load_entries([tmp_path])[0].runs[0].as_dict() == runs["sync"].as_dict()


def test_runs_of_one_strategy_on_one_cluster_are_repeats(runs, tmp_path):
    for place in ("a", "b"):
        runs["sync"].save(tmp_path / place)
    assert summary_of(load_entries([tmp_path / "a", tmp_path / "b"])) == [("sync", 2, None)]


def test_runs_on_other_numbers_of_workers_are_kept_apart(runs, tmp_path):
    for name in ("sync", "wide", "single", "alone"):
        runs[name].save(tmp_path / name)
    loaded = load_entries(tmp_path / name for name in ("sync", "wide", "single", "alone"))
    assert [each.name for each in loaded] == ["sync, 4 workers", "sync, 6 workers", "single"]
    assert len(loaded[2].runs) == 2  # one worker, on a cluster of any size


def test_runs_on_other_clusters_of_the_same_size_say_which(runs, tmp_path):
    runs["sync"].save(tmp_path / "even")
    run_of("sync", slow={3: 4.0}).save(tmp_path / "slow")
    names = [each.name for each in load_entries([tmp_path / "even", tmp_path / "slow"])]
    assert names[1] == f"sync, {run_of('sync', slow={3: 4.0}).cluster}"


def test_runs_of_other_tasks_are_no_repeats(runs, tmp_path):
    run = runs["sync"]
    other = dataclasses.replace(run, fingerprint=run.fingerprint | {"samples": "7"})
    for name, each in {"one": run, "other": other, "again": run}.items():
        each.save(tmp_path / name)
    loaded = load_entries(tmp_path / name for name in ("one", "other", "again"))
    assert summary_of(loaded) == [("sync, task 1", 2, None), ("sync, task 2", 1, None)]


def test_a_run_that_does_not_say_what_it_learned_goes_with_the_others(runs, tmp_path):
    for name, each in {"new": runs["sync"], "old": dataclasses.replace(runs["sync"], fingerprint={})}.items():
        each.save(tmp_path / name)
    assert summary_of(load_entries([tmp_path / "old", tmp_path / "new"])) == [("sync", 2, None)]


def test_a_failed_entry_that_succeeded_elsewhere_has_not_failed(runs, tmp_path):
    save_entries([Entry(name="sync", error="why")], tmp_path / "failed")
    runs["sync"].save(tmp_path / "well")
    assert summary_of(load_entries([tmp_path / "failed", tmp_path / "well"])) == [("sync", 1, None)]


def test_a_directory_without_a_run_is_refused(tmp_path):
    with refused("directory", str(tmp_path)):
        load_entries([tmp_path])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 1, "entries": [3]}', '{"format": 1, "entries": [{"name": 1, "runs": []}]}'],
)
def test_a_damaged_list_is_refused(tmp_path, text):
    (tmp_path / "comparison.json").write_text(text)
    with raised(DamagedError, file="comparison.json"):
        load_entries([tmp_path])


def test_a_list_of_a_newer_format_is_refused(tmp_path):
    (tmp_path / "comparison.json").write_text(json.dumps({"format": 2, "entries": []}))
    with refused("directory", 2, bound=has(1)):
        load_entries([tmp_path])


def test_a_damaged_run_of_a_comparison_is_refused(runs, tmp_path):
    save_entries([entry(runs["sync"])], tmp_path)
    (tmp_path / "1-sync" / "1" / "spans.npz").write_bytes(b"nonsense")
    with raised(DamagedError, file="spans.npz"):
        load_entries([tmp_path])


def test_names_become_directories_that_every_system_can_hold(runs, tmp_path):
    save_entries([entry(runs["k-sync:k=3"], name="a/../b: c")], tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["1-a_.._b_c"]


# A disk that is full


def all_files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_save_that_fails_leaves_the_older_comparison_whole(runs, tmp_path):
    save_entries([Entry(name="async", error="why")], tmp_path)
    (tmp_path / "report.html").write_text("page")
    before = all_files(tmp_path)
    with (
        files_of_at_most(1000),
        raised(SaveError, filename=str(tmp_path), errno=errno.EFBIG),
    ):
        save_entries([entry(runs["sync"]), entry(runs["single"])], tmp_path)
    assert all_files(tmp_path) == before


def test_a_comparison_is_replaced_and_other_files_stay(runs, tmp_path):
    save_entries([entry(runs["sync"], runs["sync"])], tmp_path)
    (tmp_path / "1-sync" / "1" / "notes.txt").write_text("mine")
    save_entries([entry(runs["sync"], runs["wide"]), entry(runs["single"])], tmp_path)
    assert len(load_entries([tmp_path])) == 3
    assert (tmp_path / "1-sync" / "1" / "notes.txt").read_text() == "mine"
    assert not list(tmp_path.rglob(".sav*"))


def test_a_run_of_a_comparison_whose_save_was_cut_short_is_found(runs, tmp_path):
    save_entries([entry(runs["sync"])], tmp_path)
    save_entries([entry(runs["single"], name="sync")], tmp_path / "newer")
    # All files are written, but none has its final name yet.
    os.rename(tmp_path / "newer", tmp_path / ".saved")
    assert summary_of(load_entries([tmp_path])) == [("single", 1, None)]
    save_entries([entry(runs["sync"])], tmp_path)
    assert summary_of(load_entries([tmp_path])) == [("sync", 1, None)]
    assert not list(tmp_path.rglob(".sav*"))


# A malicious list


def list_with(folder, *runs):
    folder.mkdir(exist_ok=True)
    content = {"format": 1, "entries": [{"name": "sync", "runs": [str(run) for run in runs]}]}
    (folder / "comparison.json").write_text(json.dumps(content))
    return folder


def test_a_run_outside_of_the_folder_is_not_read(runs, tmp_path):
    runs["sync"].save(tmp_path / "outside")
    inside = list_with(tmp_path / "inside")
    (inside / "link").symlink_to(tmp_path / "outside")
    for name in (tmp_path / "outside", "../outside", "link", "link/../../outside", "", ".", "~"):
        with refused("directory", str(inside)):
            load_entries([list_with(inside, name)])


def test_a_run_that_is_listed_a_thousand_times_is_not_read_a_thousand_times(runs, tmp_path):
    runs["sync"].save(tmp_path / "run")
    with raised(DamagedError, file="comparison.json"):
        load_entries([list_with(tmp_path, *["run"] * 1000)])


UNREADABLE = {
    "deep": "[" * 100_000,
    "no entries": '{"format": 1}',
    "no runs": '{"format": 1, "entries": [{"name": "a"}]}',
    "not UTF-8": "\udcff",
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_list_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / "comparison.json").write_text(text, errors="surrogateescape")
    with raised(DamagedError, file="comparison.json"):
        load_entries([tmp_path])


def test_a_pipe_in_the_place_of_the_list_is_refused(tmp_path):
    os.mkfifo(tmp_path / "comparison.json")
    with raised(DamagedError, file="comparison.json"):
        load_entries([tmp_path])
