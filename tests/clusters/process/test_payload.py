import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from tasks import a_task, samples
from torch.utils.data import Dataset

import paceline as pl
from paceline.clusters.process import payload

LARGE = 300_000  # numbers of 8 bytes: enough to be looked for in files


def roundtrip(value):
    memory = payload.store(value)
    try:
        return payload.load(memory.fd, memory.nbytes)
    finally:
        memory.close_fd()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(10),
        torch.arange(10_000.0).view(100, 100),
        torch.arange(10_000.0).view(100, 100).t(),
        torch.arange(10_000.0)[5000:],
        torch.ones(10_000, dtype=torch.bfloat16),
        torch.ones(10_000, requires_grad=True),
        torch.ones(10_000).to_sparse(),
        torch.ones(10_000, dtype=torch.complex64).conj(),
        torch.nn.Parameter(torch.ones(10_000)),
        torch.empty(0),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_every_kind_of_tensor_travels(tensor):
    arrived = roundtrip({"data": tensor})["data"]
    assert type(arrived) is type(tensor)
    assert arrived.requires_grad == tensor.requires_grad
    assert torch.equal(arrived.to_dense(), tensor.to_dense())


def test_tensors_that_are_one_stay_one():
    large = torch.arange(10_000.0)
    first, second = roundtrip((large, large))
    assert first is second


def test_a_receiver_that_writes_to_a_large_tensor_changes_its_own_copy_only():
    memory = payload.store([torch.zeros(10_000)])
    (mine,), (other,) = (payload.load(memory.fd, memory.nbytes) for _ in range(2))
    mine.fill_(1)
    assert not other.any()
    memory.close_fd()


def test_functions_and_classes_of_no_module_travel():
    factor = 3

    class Scale:
        def __call__(self, x):
            return factor * x

    assert roundtrip(lambda x: Scale()(x) + 1)(2) == 7


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10),
        np.arange(LARGE).reshape(3, -1),
        np.asfortranarray(np.arange(LARGE).reshape(3, -1)),
        np.arange(LARGE)[::-2],
        np.array(["a", None], dtype=object),
        np.zeros(LARGE, dtype=[("x", "f4"), ("y", "i8")]),
    ],
    ids=["small", "large", "by columns", "strided", "of objects", "of records"],
)
def test_every_kind_of_array_travels_and_can_be_written_to(array):
    arrived = roundtrip([array])[0]
    assert arrived.dtype == array.dtype
    assert np.array_equal(arrived, array)
    assert arrived.flags.f_contiguous or not array.flags.f_contiguous
    arrived[0] = arrived[1]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "numbers.bin"
    np.arange(LARGE).tofile(path)
    return path


def size(value, **words):
    memory = payload.store(value, **words)
    memory.close_fd()
    return memory.nbytes


MAPPED = {
    "memmap": lambda path: np.memmap(path, dtype=np.int64, mode="c"),
    "part of a memmap": lambda path: np.memmap(path, dtype=np.int64, mode="r")[1000:],
    "strided memmap": lambda path: np.memmap(path, dtype=np.int64, mode="r").reshape(-1, 2)[:, 1],
    "plain array of a memmap": lambda path: np.asarray(np.memmap(path, dtype=np.int64, mode="c")),
    "tensor of a memmap": lambda path: torch.from_numpy(np.memmap(path, dtype=np.int64, mode="c")),
    "tensor of a file": lambda path: torch.from_file(str(path), size=LARGE, dtype=torch.int64),
    "shared tensor of a file": lambda path: torch.from_file(
        str(path), shared=True, size=LARGE, dtype=torch.int64
    ),
}


@pytest.mark.parametrize("make", MAPPED.values(), ids=MAPPED)
def test_what_is_mapped_from_a_file_is_not_copied(make, path):
    value = make(path)
    assert size([value]) < 10_000
    assert np.array_equal(roundtrip([value])[0], value)


@pytest.mark.parametrize("make", MAPPED.values(), ids=MAPPED)
def test_for_a_host_that_may_not_have_the_file_it_is_copied(make, path):
    value = make(path)
    memory = payload.store([value], files=False)
    path.unlink()
    assert memory.nbytes > value.nbytes
    assert np.array_equal(payload.load(memory.fd, memory.nbytes)[0], value)
    memory.close_fd()


@pytest.mark.parametrize("mode", ["r", "c"])
def test_a_memmap_arrives_as_one(mode, path):
    arrived = roundtrip(np.memmap(path, dtype=np.int64, mode=mode))
    assert type(arrived) is np.memmap
    assert (arrived.filename, arrived.mode, arrived.flags.writeable) == (str(path), mode, mode == "c")


def test_a_part_of_a_tensor_takes_no_more_than_its_own_bytes():
    whole = torch.zeros(1_000_000)
    assert size(whole[:10_000]) < 50_000


def test_large_copies_are_said_once(monkeypatch, caplog):
    monkeypatch.setattr(payload, "_SAID", 1_000_000)
    payload._say_what_is_copied.cache_clear()
    with caplog.at_level(logging.WARNING, logger="paceline"):
        for _ in range(2):
            packed = payload.Packed([np.zeros(2_000_000, dtype=np.uint8), list(range(400_000))])
            packed.say_what_is_copied()
    (record,) = caplog.records
    assert "1.907 MiB of tensors and arrays" in record.getMessage()
    assert "numpy.load" in record.getMessage()


class Mapped(Dataset):
    """Its samples can be had only where its file is mapped."""

    def __init__(self, path):
        self.numbers = np.memmap(path, dtype=np.int64, mode="r")

    def __len__(self):
        return 24

    def __getitem__(self, index):
        assert self.numbers.filename in Path("/proc/self/maps").read_text()
        assert self.numbers[index] == index
        return tuple(tensor[index] for tensor in samples())


def test_the_workers_of_a_run_map_the_file_that_a_dataset_has_mapped(path):
    run = pl.train(a_task(data=Mapped(path), loaders=1), "all-reduce", pl.Local(workers=2), steps=3)
    assert run.steps == 3
