import errno
import fcntl
import os
import stat
import sys
from pathlib import Path

import pytest
from disks import files_of_at_most
from refusals import has, raised, refused

from paceline.errors import PacelineError, SaveError
from paceline.files.reading import Folder
from paceline.files.writing import check_file, check_folder, write_file, write_folder

OLD = {"a": b"old a", "b": b"old b", "inner/c": b"old c"}
NEW = {"a": b"new a", "b": b"new b", "inner/c": b"new c", "inner/d": b"new d"}


def writer(files):
    def write(folder):
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)

    return write


def all_of(folder):
    """Return every file, including hidden ones."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def as_read(folder):
    """Return the content that a reader finds under the saved names."""
    found = {}
    for name in NEW:
        *inner, last = name.split("/")
        place = Folder(folder)
        for part in inner:
            place = place.folder(part)
        if place.has(last):
            with place.opened(last) as file:
                found[name] = file.read()
    return found


# One file


def test_a_file_that_does_not_fit_leaves_the_old_one_whole(tmp_path):
    path = tmp_path / "page.html"
    write_file(path, b"old")
    with (
        files_of_at_most(100),
        raised(SaveError, filename=str(path), errno=errno.EFBIG),
    ):
        write_file(path, bytes(200))
    assert all_of(tmp_path) == {"page.html": b"old"}


def test_a_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "page.html"
    write_file(path, b"old")
    path.chmod(0o640)
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(tmp_path / "pipe", b"words")
        assert os.read(reader, 100) == b"words"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_failed_save_is_an_error_of_the_system_and_of_paceline(tmp_path):
    with raised(OSError, filename=str(tmp_path / "nowhere" / "file"), errno=errno.ENOENT) as caught:
        write_file(tmp_path / "nowhere" / "file", b"")
    assert isinstance(caught.value, PacelineError)


# A folder


def test_a_folder_is_replaced_and_other_files_stay(tmp_path):
    write_folder(tmp_path, writer(OLD))
    (tmp_path / "report.html").write_bytes(b"mine")
    (tmp_path / "inner" / "checkpoint").mkdir()
    (tmp_path / "inner" / "checkpoint" / "1").write_bytes(b"mine too")
    write_folder(tmp_path, writer(NEW))
    assert all_of(tmp_path) == NEW | {"report.html": b"mine", "inner/checkpoint/1": b"mine too"}


@pytest.mark.parametrize("name", NEW)
def test_a_folder_that_does_not_fit_leaves_the_old_files_whole(tmp_path, name):
    write_folder(tmp_path, writer(OLD))
    with (
        files_of_at_most(100),
        raised(SaveError, filename=str(tmp_path), errno=errno.EFBIG),
    ):
        write_folder(tmp_path, writer(NEW | {name: bytes(200)}))
    assert all_of(tmp_path) == OLD


def test_a_new_folder_that_does_not_fit_is_not_left_behind(tmp_path):
    with files_of_at_most(100), pytest.raises(SaveError):
        write_folder(tmp_path / "runs" / "first", writer({"a": bytes(200)}))
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_writer_leaves_the_old_files_whole(tmp_path):
    def write(folder):
        (folder / "a").write_bytes(b"new")
        raise KeyboardInterrupt

    write_folder(tmp_path, writer(OLD))
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path, write)
    assert all_of(tmp_path) == OLD


@pytest.mark.parametrize(("place", "files"), [("a", {"a/b": b"new"}), ("inner", {"inner": b"new"})])
def test_a_file_and_a_folder_do_not_replace_each_other(tmp_path, place, files):
    write_folder(tmp_path, writer(OLD))
    with raised(SaveError, filename=str(tmp_path), strerror=has(str(tmp_path / place))):
        write_folder(tmp_path, writer(files))
    assert all_of(tmp_path) == OLD


def test_two_processes_do_not_save_into_one_folder_at_a_time(tmp_path):
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with raised(SaveError, filename=str(tmp_path)):
        write_folder(tmp_path, writer(NEW))
    os.close(other)
    write_folder(tmp_path, writer(NEW))
    assert all_of(tmp_path) == NEW


_CHANGES = frozenset({"open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "shutil.rmtree"})


def save_and_die(folder, moment):
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
            write_folder(folder, writer(NEW))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.slow
def test_whoever_is_killed_at_any_moment_leaves_the_old_files_or_the_new_ones(tmp_path):
    seen, moment, died = [], 0, True
    while died:
        folder = tmp_path / str(moment)
        write_folder(folder, writer(OLD))
        died = save_and_die(folder, moment)
        seen.append("old" if (found := as_read(folder)) == OLD else "new")
        assert found in (OLD, NEW)
        write_folder(folder, writer(NEW | {"a": b"newest"}))
        assert all_of(folder) == NEW | {"a": b"newest"}
        moment += 1
    # After the first new result, all later ones are new. Both old and new results must occur.
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 2


# A real full disk


@pytest.mark.parametrize("inside", [".", "run"])
def test_a_full_disk_leaves_the_old_files_whole(small_disk, inside):
    folder: Path = small_disk / inside
    write_folder(folder, writer(OLD))
    with raised(SaveError, errno=errno.ENOSPC):
        write_folder(folder, writer(NEW | {"b": bytes(100_000)}))
    assert all_of(folder) == OLD
    write_folder(folder, writer(NEW))
    assert all_of(folder) == NEW


# Checks before anything is written


@pytest.mark.parametrize("place", ["/proc", "/proc/run", "/proc/run/deeper", __file__, f"{__file__}/run"])
def test_a_folder_in_which_nothing_can_be_created_is_refused(place):
    with refused("--out", place):
        check_folder("--out", place)


def test_a_check_of_a_folder_leaves_nothing_behind(tmp_path):
    check_folder("--out", tmp_path / "a" / "b")
    check_folder("--out", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["/proc/page.html", "/", f"{__file__}/page.html", "/nowhere/page.html"])
def test_a_file_that_cannot_be_written_is_refused(place):
    with refused("--out", place):
        check_file("--out", place)


def test_a_check_of_a_file_leaves_its_folder_as_it_was(tmp_path):
    (tmp_path / "old.html").write_text("old")
    check_file("--out", tmp_path / "old.html")
    check_file("--out", tmp_path / "new.html")
    assert [each.name for each in tmp_path.iterdir()] == ["old.html"]
    assert (tmp_path / "old.html").read_text() == "old"
