import itertools
import os
import resource

import pytest
from processes import workers
from refusals import has, refused
from tasks import a_task

import paceline as pl
from paceline.clusters.local import open_files
from paceline.errors import ConfigurationError


@pytest.fixture
def room_for():
    """Set how many more files this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def set_room(more):
        *used, _ = sorted(map(int, os.listdir("/proc/self/fd")))  # the last one was for the listing
        free = (fd for fd in range(soft) if fd not in used)
        limit = next(itertools.islice(free, more, None))  # a limit is a number that no descriptor reaches
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))

    yield set_room
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_low_a_limit_of_open_files_is_refused_with_the_number_that_a_run_needs(
    room_for, file_descriptors
):
    pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=1)
    before = file_descriptors()
    room_for(10)
    with refused(has("ulimit"), resource.getrlimit(resource.RLIMIT_NOFILE)[0], bound=has(2)):
        pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=1)
    assert file_descriptors() == before


def test_files_that_run_out_anywhere_in_a_run_are_named_and_none_is_left(
    room_for, file_descriptors, monkeypatch
):
    monkeypatch.setattr(open_files, "_RUN_FILES", 0)
    monkeypatch.setattr(open_files, "_RANK_FILES", 0)
    task, cluster = a_task(), pl.Local(workers=2)
    pl.train(task, "all-reduce:algorithm=shared", cluster, steps=1)
    before, refused = file_descriptors(), 0
    for more in (*range(0, 14, 2), 9, 24):
        room_for(more)
        try:
            pl.train(task, "all-reduce:algorithm=shared", cluster, steps=1)
        except ConfigurationError as error:
            refused += "the limit of open files (ulimit -n) must be" in str(error)
        assert file_descriptors() == before
        assert workers() == []
    assert 4 < refused < 9, "with little room it is refused, with enough it runs"


def test_files_with_numbers_above_the_limit_take_no_room(room_for, file_descriptors):
    pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=1)
    high = [os.dup2(0, number) for number in range(500, 600)]
    try:
        before = file_descriptors()
        room_for(60)
        pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=1)
        assert file_descriptors() == before
    finally:
        for fd in high:
            os.close(fd)
