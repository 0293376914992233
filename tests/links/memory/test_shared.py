import os

import pytest
import torch
from processes import opened

from paceline.links.memory.shared import SharedMemory, aligned


def test_memory_has_no_name_that_anybody_could_open():
    memory = SharedMemory.create("test-nameless", 4096)
    (name,) = (name for name in opened(os.getpid()) if "test-nameless" in name)
    assert name == "/memfd:paceline-test-nameless (deleted)"
    assert not any("test-nameless" in name for name in os.listdir("/dev/shm"))
    assert memory.nbytes == 4096


def test_a_process_that_is_handed_the_descriptor_sees_the_same_memory():
    memory = SharedMemory.create("test", 64)
    other = SharedMemory.attach(os.dup(memory.fd))
    memory.words(8, 2)[1] = -7
    assert other.words(16, 1)[0] == -7
    assert other.nbytes == 64


def test_the_descriptor_can_be_closed_while_the_mapping_lives(file_descriptors):
    before = file_descriptors()
    memory = SharedMemory.create("test", 64)
    assert file_descriptors() == before + 2  # the descriptor, and mmap's own copy of it
    memory.close_fd()
    memory.close_fd()
    memory.words(0, 1)[0] = 5
    assert memory.words(0, 1)[0] == 5
    del memory
    assert file_descriptors() == before


def test_memory_that_nobody_holds_is_unmapped():
    memory = SharedMemory.create("test-unmapped", 4096)
    part = memory.tensor(torch.float32)
    memory.close_fd()
    del memory
    part[0] = 1
    assert any("test-unmapped" in name for name in opened(os.getpid())), "a tensor keeps it"
    del part
    assert not any("test-unmapped" in name for name in opened(os.getpid()))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64], ids=str)
def test_tensors_of_any_dtype_lie_in_the_memory(dtype):
    memory = SharedMemory.create("test", 256)
    memory.tensor(dtype, 64, 5).copy_(torch.arange(5))
    assert memory.tensor(dtype, 64, 5).tolist() == [0, 1, 2, 3, 4]
    assert len(memory.tensor(dtype)) == 256 // dtype.itemsize
    assert len(memory.tensor(dtype, 64, 0)) == 0


def test_new_memory_is_zero():
    assert not SharedMemory.create("test", 5000).tensor(torch.uint8).any()


def test_memory_of_no_bytes_can_be_mapped():
    assert SharedMemory.create("test", 0).nbytes == 1


@pytest.mark.parametrize(("nbytes", "expected"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_aligned_is_the_next_multiple(nbytes, expected):
    assert aligned(nbytes) == expected
