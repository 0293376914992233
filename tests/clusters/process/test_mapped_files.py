import ctypes
import mmap

import numpy as np
import pytest
from refusals import raised

from paceline.clusters.process.mapped_files import Mappings, map_part
from paceline.errors import RunError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "numbers with a name.bin"
    np.arange(100_000).tofile(path)
    return path


def find(array):
    low, high = np.lib.array_utils.byte_bounds(array)
    return Mappings().find(low, high - low)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_part_of_a_mapped_file_is_found_and_mapped_again(path, mode):
    part = find(np.memmap(path, dtype=np.int64, mode=mode)[70_000:70_010])
    assert (part.path, part.offset) == (str(path), 8 * 70_000)
    assert np.frombuffer(map_part(part), np.int64).tolist() == list(range(70_000, 70_010))


def test_memory_of_the_process_itself_is_no_file():
    assert find(np.arange(100_000)) is None


def test_a_private_mapping_that_was_written_to_is_not_the_file_any_more(path):
    array = np.memmap(path, dtype=np.int64, mode="c")
    assert find(array) is not None
    array[50_000] = -1
    assert find(array) is None


def test_a_shared_mapping_that_was_written_to_is_the_file(path):
    array = np.memmap(path, dtype=np.int64, mode="r+")
    array[50_000] = -1
    assert np.frombuffer(map_part(find(array)), np.int64)[50_000] == -1


def test_a_file_that_was_deleted_is_not_found(path):
    array = np.memmap(path, dtype=np.int64, mode="r")
    path.unlink()
    assert find(array) is None


def test_a_mapping_without_a_file_is_not_found():
    mapped = mmap.mmap(-1, 2**20)
    assert Mappings().find(ctypes.addressof(ctypes.c_char.from_buffer(mapped)), 2**20) is None


def test_writing_to_a_part_leaves_the_file_as_it_is(path):
    part = find(np.memmap(path, dtype=np.int64, mode="r"))
    np.frombuffer(map_part(part), np.int64)[0] = 7
    assert np.fromfile(path, dtype=np.int64)[0] == 0


def test_another_file_in_its_place_is_refused_by_name(path, tmp_path):
    array = np.memmap(path, dtype=np.int64, mode="r")
    part = find(array)
    other = tmp_path / "other.bin"
    np.zeros(100_000, dtype=np.int64).tofile(other)
    other.rename(path)
    with raised(RunError, "numbers with a name.bin"):
        map_part(part)


def test_a_file_that_is_gone_is_refused_by_name(path):
    part = find(np.memmap(path, dtype=np.int64, mode="r"))
    path.unlink()
    with raised(RunError, "numbers with a name.bin"):
        map_part(part)


def test_a_file_that_has_become_too_short_is_refused_by_name(path):
    part = find(np.memmap(path, dtype=np.int64, mode="r"))
    with path.open("r+b") as file:
        file.truncate(100)
    with raised(RunError, "numbers with a name.bin"):
        map_part(part)
