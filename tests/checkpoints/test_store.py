import errno
import os
import pickle
import shutil
import subprocess
import sys
import threading

import pytest
from checkpoints.shards import RANKS, assert_whole, save, shard_of, steps_in
from disks import files_of_at_most
from refusals import has, raised, refused

from paceline.checkpoints import Store
from paceline.errors import DamagedError, SaveError


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "runs" / "x")
    made.begin(0)
    return made


def names_in(folder):
    return sorted(os.listdir(folder))


# Preserved checkpoints


def test_what_every_rank_wrote_is_read_back(store):
    made = save(store, 100, metric=0.5)
    assert_whole(made)
    assert (made.step, made.metric, made.ranks) == (100, 0.5, RANKS)
    assert made.facts["strategy"] == "all-reduce"
    assert made.nbytes == sum(path.stat().st_size for path in made.folder.glob("rank-*"))
    assert store.newest() == made


def test_a_checkpoint_holds_the_ranks_files_and_the_manifest_alone(store):
    made = save(store, 100)
    files = [f"rank-0000{rank}.safetensors" for rank in range(RANKS)]
    assert names_in(made.folder) == ["manifest.json", *files]
    assert made.folder.name == "step-00000100"


def test_nothing_is_left_when_a_run_has_ended(store):
    save(store, 1)
    store.end()
    assert names_in(store.folder) == ["step-00000001"]


def test_the_last_two_stay(store):
    for step in (1, 20, 300, 4000):
        save(store, step)
    assert steps_in(store.folder) == [300, 4000]


@pytest.mark.parametrize(
    ("better", "metrics", "kept"),
    [
        ("higher", [1, 9, 2, 3, None], [2, 5]),
        ("lower", [3, 1, 9, 4, 5], [2, 5]),
        ("higher", [9, 1, 2, 9, float("nan")], [4, 5]),
        ("higher", [None] * 5, [5]),
    ],
)
def test_the_best_by_the_metric_stays_too_if_asked(tmp_path, better, metrics, kept):
    store = Store(tmp_path, keep=1, keep_best=True, better=better)
    for step, metric in enumerate(metrics, start=1):
        save(store, step, metric=metric)
    assert steps_in(tmp_path) == kept


def test_an_empty_or_missing_folder_has_no_checkpoint(tmp_path):
    assert Store(tmp_path).newest() is None
    assert Store(tmp_path / "nowhere").newest(good=True) is None
    assert Store(tmp_path / "nowhere").checkpoints() == []


def test_a_store_is_the_same_in_another_process_that_stands_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store("x", keep=3)
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(store)) == store
    assert store.folder == tmp_path / "x"


@pytest.mark.parametrize("words", [{"keep": 0}, {"keep": 1.5}, {"keep": True}, {"better": "up"}])
def test_wrong_words_are_refused(tmp_path, words):
    with refused(*next(iter(words.items()))):
        Store(tmp_path, **words)


# Ranks that wait for each other


def test_the_reporter_waits_until_all_ranks_have_written(store):
    store.write(7, shard_of(0, 7))
    done = []
    reporter = threading.Thread(
        target=lambda: done.append(store.commit(7, RANKS, {}, deadline_s=60)), daemon=True
    )
    reporter.start()
    for rank in (2, 1):
        assert not done
        assert steps_in(store.folder) == []
        store.write(7, shard_of(rank, 7))
    reporter.join(60)
    assert_whole(done[0])


def test_ranks_that_do_not_write_are_named_at_the_deadline(store):
    save(store, 3)
    store.write(7, shard_of(1, 7))
    with raised(SaveError, filename=has("step-00000007"), strerror=has(0, 2, 0.01)):
        store.commit(7, RANKS, {}, deadline_s=0.01)
    assert steps_in(store.folder) == [3]
    assert_whole(store.newest())


def test_a_rank_that_cannot_write_is_not_waited_for(store):
    store.write(7, shard_of(0, 7))
    with files_of_at_most(1000), raised(SaveError, filename=has("rank-00001.safetensors"), errno=errno.EFBIG):
        store.write(7, shard_of(1, 7))
    with raised(SaveError, filename=has("step-00000007"), strerror=has("rank 1", os.strerror(errno.EFBIG))):
        store.commit(7, RANKS, {}, deadline_s=3600)


def test_a_rank_does_not_write_what_another_has_given_up(store):
    store.skip(7, 0, "the last is not done yet")
    with raised(SaveError, strerror=has("rank 0")):
        store.write(7, shard_of(1, 7))
    assert not list(store.folder.rglob("*.safetensors"))


def test_what_another_attempt_writes_is_not_taken_for_this_ones(store):
    again = Store(store.folder)
    again.begin(0)
    for rank in range(RANKS):
        store.write(7, shard_of(rank, 6))
    for rank in (0, 1):
        again.write(7, shard_of(rank, 7))
    with raised(SaveError, strerror=has("rank 2")):
        again.commit(7, RANKS, {}, deadline_s=0.01)
    assert_whole(save(again, 7))


def test_once_the_next_attempt_has_begun_the_last_one_makes_no_checkpoint(store):
    save(store, 1)
    again = Store(store.folder)
    again.begin(1)
    with raised(SaveError, filename=has("step-00000002")):
        save(store, 2)
    assert steps_in(store.folder) == [1]
    assert_whole(save(again, 2))


def test_a_rank_that_sees_another_folder_is_told(store, tmp_path):
    store.check_shared()
    elsewhere = Store(tmp_path / "local", attempt=store.attempt)
    elsewhere.check_writable()
    with refused("checkpoint"):
        elsewhere.check_shared()


# Folders that are not writable


@pytest.fixture
def read_only(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True, timeout=60)
    return small_disk


def test_a_read_only_folder_is_refused_at_once(read_only):
    for folder in (read_only, read_only / "runs"):
        with refused("checkpoint", remedy=has("Read-only file system")):
            Store(folder).check_writable()


def test_a_file_in_the_place_of_the_folder_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "x"):
        with refused("checkpoint", str(folder)):
            Store(folder).begin(0)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_leaves_the_old_checkpoint_whole_and_no_rest_of_the_new(small_disk):
    store = Store(small_disk / "x")
    store.begin(0)
    save(store, 1)
    with raised(SaveError, errno=errno.ENOSPC):
        save(store, 2, size=4000)
    with raised(SaveError, strerror=has("rank 0")):
        store.commit(2, RANKS, {}, deadline_s=3600)
    assert [name for name in names_in(store.folder) if "step" in name] == ["step-00000001"]
    assert_whole(store.newest())
    assert_whole(save(store, 3))


def test_a_folder_that_vanished_is_an_error_and_is_not_made_again(store):
    save(store, 1)
    shutil.rmtree(store.folder)
    with raised(SaveError, errno=errno.ENOENT):
        store.write(2, shard_of(0, 2))
    with raised(SaveError, errno=errno.ENOENT):
        store.commit(2, RANKS, {}, deadline_s=3600)
    assert not store.folder.exists()


# Killed writers

_CHANGES = frozenset({"open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "shutil.rmtree"})


def save_and_die(store, moment):
    """Save in a child that ends, as if killed, before change number `moment` of the disk.

    Return whether it ended there.
    """
    child = os.fork()
    if not child:
        left = iter(range(moment))

        def die(event, _args):
            if event in _CHANGES and next(left, None) is None:
                os._exit(1)

        try:
            sys.addaudithook(die)
            save(store, 3, ranks=2)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_whoever_is_killed_at_any_moment_leaves_whole_checkpoints_alone(tmp_path):
    for step in (1, 2):
        save(Store(tmp_path / "before"), step, ranks=2)
    seen, moment, died = [], 0, True
    while died:
        store = Store(shutil.copytree(tmp_path / "before", tmp_path / str(moment)))
        died = save_and_die(store, moment)
        newest = Store(store.folder).newest()
        seen.append(newest.step)
        assert_whole(newest, ranks=2)
        again = Store(store.folder)
        again.begin(newest.step)
        assert_whole(save(again, 4, ranks=1), ranks=1)
        again.end()
        assert names_in(store.folder) == [f"step-{step:08}" for step in (newest.step, 4)]
        moment += 1
    # After the first new result, all later ones are new. Both old and new results must occur.
    assert seen == sorted(seen)
    assert set(seen) == {2, 3}


def test_a_checkpoint_that_lost_its_manifest_is_damaged(store):
    save(store, 1)
    save(store, 2)
    (store.folder / "step-00000002" / "manifest.json").unlink()
    with raised(DamagedError, file="manifest.json", folder=has("step-00000002"), remedy=has(1)):
        store.newest()
    assert store.newest(good=True).step == 1


def test_a_checkpoint_that_was_being_written_at_a_kill_is_unfinished_and_not_damaged(store):
    save(store, 1)
    store.write(2, shard_of(0, 2))
    again = Store(store.folder)
    assert again.newest().step == 1
    assert [path.name for path in again.unfinished(1)] == [f".step-00000002-{store.attempt}"]
    assert again.unfinished(2) == []


def test_files_of_the_user_stay(store):
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / ".hidden").write_text("mine too")
    (store.folder / "step-by-step").mkdir()
    store.begin(0)
    for step in (1, 2, 3):
        save(store, step)
    store.end()
    assert {"notes.txt", ".hidden", "step-by-step"} <= {*names_in(store.folder)}


def test_a_run_that_goes_on_from_an_older_checkpoint_removes_the_later_ones(store):
    for step in (1, 2):
        save(store, step)
    Store(store.folder).begin(1)
    assert steps_in(store.folder) == [1]


# Damage


def damage(checkpoint, name):
    path = checkpoint.folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


NAMES = ("rank-00000.safetensors", "rank-00002.safetensors", "manifest.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_one_is_refused_by_name_and_the_one_before_it_is_offered(store, name):
    save(store, 1)
    damage(save(store, 2), name)
    with raised(DamagedError, file=name, folder=has("step-00000002"), remedy=has(1)):
        store.newest()
    assert store.newest(good=True).step == 1


def test_the_newest_that_is_whole_is_taken_if_asked(tmp_path):
    store = Store(tmp_path, keep=4)
    made = [save(store, step) for step in (1, 2, 3, 4)]
    for each, name in zip(made[1:], NAMES, strict=True):
        damage(each, name)
    with raised(DamagedError, file="manifest.json", folder=has("step-00000004"), remedy=has(1)):
        store.newest()
    assert_whole(store.newest(good=True))
    assert store.newest(good=True).step == 1


def test_where_none_is_whole_nothing_is_taken(store):
    for step in (1, 2):
        damage(save(store, step), NAMES[0])
    for good in (False, True):
        with raised(DamagedError, file="rank-00000.safetensors"):
            store.newest(good=good)


def test_a_checkpoint_in_the_place_of_a_damaged_one_replaces_it(store):
    save(store, 1)
    damage(save(store, 2), "manifest.json")
    assert_whole(save(store, 2))
    assert steps_in(store.folder) == [1, 2]
