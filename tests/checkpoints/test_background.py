import shutil
import threading

import pytest
from checkpoints.shards import assert_whole, shard_of
from disks import files_of_at_most

from paceline.checkpoints import BackgroundWriter, Store


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "x")
    made.begin(0)
    return made


def commit(store, step):
    return lambda: store.commit(step, 1, {}, deadline_s=60)


def test_a_checkpoint_is_of_the_moment_at_which_it_was_submitted(store, slow):
    writer, shard = BackgroundWriter(slow), shard_of(0, 5)
    assert writer.submit(5, shard, commit(store, 5))
    for tensor in shard.tensors.values():
        tensor.zero_()
    shard.facts["streams"].clear()
    slow.go.set()
    assert writer.finish(60)
    assert_whole(store.newest(), ranks=1)
    assert writer.since == 5
    assert writer.blocked_s > 0


def test_ranks_write_beside_each_other_and_the_reporter_commits(store):
    writers = [BackgroundWriter(store) for _ in range(3)]
    for rank, writer in enumerate(writers):
        writer.submit(5, shard_of(rank, 5), None if rank else lambda: store.commit(5, 3, {}, deadline_s=60))
    assert all(writer.finish(60) for writer in writers)
    assert_whole(store.newest())


def test_there_are_never_two_at_once_and_the_one_left_out_is_told(store):
    told, go = [], threading.Event()
    writer = BackgroundWriter(store, tell=told.append)
    assert writer.submit(1, shard_of(0, 1), commit(store, 1))
    assert writer.finish(60)
    assert writer.submit(2, shard_of(0, 2), lambda: go.wait(60))
    assert not writer.submit(3, shard_of(0, 3), commit(store, 3))
    assert len(told) == 1
    assert told[0].startswith(
        "no new checkpoint since step 1: skipped step 3, because the checkpoint of step 2 is not finished"
    )
    go.set()
    assert writer.finish(60)
    assert writer.submit(4, shard_of(0, 4), commit(store, 4))
    assert writer.finish(60)
    assert [each.step for each in store.checkpoints()] == [1, 4]


def test_memory_that_was_prepared_is_used(store):
    writer, shard = BackgroundWriter(store), shard_of(0, 5)
    writer.prepare(shard)
    assert writer.submit(5, shard, commit(store, 5))
    assert writer.finish(60)
    assert_whole(store.newest(), ranks=1)


class SlowStore(Store):
    """A writer that begins to write on request."""

    go = threading.Event()

    def write(self, step, shard):
        self.go.wait(60)
        super().write(step, shard)


@pytest.fixture
def slow(store):
    SlowStore.go.clear()
    yield SlowStore(store.folder, attempt=store.attempt)
    SlowStore.go.set()


def test_a_rank_that_is_still_writing_says_so_to_the_reporter_who_tells_the_user(store, slow):
    told = []
    writer = BackgroundWriter(slow, tell=told.append)
    assert writer.submit(1, shard_of(1, 1))
    assert not writer.submit(2, shard_of(1, 2))
    reporter = BackgroundWriter(store, tell=told.append)
    assert reporter.submit(2, shard_of(0, 2), lambda: store.commit(2, 2, {}, deadline_s=3600))
    assert reporter.finish(60)
    assert len(told) == 1
    assert "rank 1 could not write its file: the checkpoint of step 1 is not finished" in told[0]
    slow.go.set()
    assert writer.finish(60)
    assert len(told) == 1


def test_a_full_disk_is_told_and_the_next_checkpoint_is_tried_again(store):
    told = []
    writer = BackgroundWriter(store, tell=told.append)
    writer.submit(1, shard_of(0, 1), commit(store, 1))
    assert writer.finish(60)
    with files_of_at_most(1000):
        assert writer.submit(2, shard_of(0, 2), commit(store, 2))
        assert writer.finish(60)
    assert len(told) == 1
    assert told[0].startswith("no new checkpoint since step 1: ")
    assert told[0].endswith("rank-00000.safetensors could not be saved: File too large")
    assert not list(store.folder.glob(".step-*")), "what was written of it takes no room"
    assert_whole(store.newest(), ranks=1)
    writer.submit(3, shard_of(0, 3), commit(store, 3))
    assert writer.finish(60)
    assert store.newest().step == 3


def test_a_folder_that_vanished_is_told(store):
    told = []
    writer = BackgroundWriter(store, tell=told.append)
    shutil.rmtree(store.folder)
    writer.submit(2, shard_of(0, 2), commit(store, 2))
    writer.finish(60)
    assert len(told) == 1
    assert told[0].startswith("no new checkpoint since the beginning: ")
    assert "No such file or directory" in told[0]


def test_without_a_listener_it_is_logged(store, caplog):
    go = threading.Event()
    writer = BackgroundWriter(store, since=30)
    writer.submit(40, shard_of(0, 40), lambda: go.wait(60))
    assert not writer.finish(0)
    assert caplog.messages == [
        "no new checkpoint since step 30: the checkpoint of step 40 was not finished within 0 s"
    ]
    go.set()
    assert writer.finish(60)
