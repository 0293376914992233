import errno
import json

import pytest
import torch
from disks import files_of_at_most
from refusals import raised
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from paceline.files.checksums import hash_file
from paceline.files.tensor_files import Arena, read_tensors, write_tensors


def tensors_of_all_kinds():
    chance = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 100, (3, 5), generator=chance)
    floats = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)
    wholes = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint64)
    small = (torch.float8_e4m3fn, torch.float8_e5m2)
    made = {f"kind/{dtype}": numbers.to(dtype) for dtype in (*floats, *wholes, *small, torch.bool)}
    return made | {
        "a number": torch.tensor(3.5),
        "nothing": torch.zeros(0, 4),
        "transposed": numbers.double().T,
        "every other": numbers.float()[:, ::2],
        "odd bytes": torch.arange(3, dtype=torch.uint8),
        "trained": torch.ones(2, requires_grad=True),
        'µ\n"': torch.ones(1),
    }


def write(path, *words):
    with open(path, "xb") as out:
        return write_tensors(out, *words)


def read(path, checksum=None):
    with open(path, "rb") as file:
        return read_tensors(file, checksum)


def bytes_of(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert bytes_of(found[name]) == bytes_of(tensor), name


def test_what_is_written_is_read_back(tmp_path):
    checksum = write(tmp_path / "file", tensors_of_all_kinds(), {"facts": '{"a": 1}'})
    found = read(tmp_path / "file", checksum)
    assert_same(found.tensors, tensors_of_all_kinds())
    assert found.tensors["a number"].item() == 3.5
    assert found.notes == {"facts": '{"a": 1}'}
    with open(tmp_path / "file", "rb") as file:
        assert hash_file(file) == checksum


def test_safetensors_reads_what_we_write(tmp_path):
    write(tmp_path / "file", tensors_of_all_kinds(), {"facts": "{}"})
    assert_same(load_file(tmp_path / "file"), tensors_of_all_kinds())
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == {"facts": "{}"}


def test_we_read_what_safetensors_writes(tmp_path):
    plain = {name: tensor.contiguous() for name, tensor in tensors_of_all_kinds().items()}
    save_file(plain, tmp_path / "file", {"by": "safetensors"})
    found = read(tmp_path / "file")
    assert_same(found.tensors, plain)
    assert found.notes == {"by": "safetensors"}


def test_a_file_of_no_tensors_is_a_file(tmp_path):
    write(tmp_path / "file", {})
    assert read(tmp_path / "file").tensors == {} == load_file(tmp_path / "file")


def test_tensors_that_are_not_aligned_in_the_file_are_read_too(tmp_path):
    entries = {"a": ("U8", 1, 0, 1), "b": ("F64", 1, 1, 9)}
    header = json.dumps(
        {n: {"dtype": k, "shape": [s], "data_offsets": [a, b]} for n, (k, s, a, b) in entries.items()}
    ).encode()
    data = bytes([7]) + torch.tensor([2.5], dtype=torch.float64).numpy().tobytes()
    (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header + data)
    found = read(tmp_path / "file").tensors
    assert (found["a"].item(), found["b"].item()) == (7, 2.5)


def test_what_was_read_can_be_changed(tmp_path):
    write(tmp_path / "file", {"a": torch.ones(3), "b": torch.ones(3)})
    found = read(tmp_path / "file").tensors
    found["a"] += 1
    assert found["a"].tolist() == [2, 2, 2]
    assert found["b"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, dtype=torch.complex128), torch.ones(2, device="meta"), torch.ones(2).to_sparse()],
    ids=["complex128", "meta", "sparse"],
)
def test_what_the_format_has_no_place_for_is_refused_by_name(tmp_path, tensor):
    with raised(OSError, "layer.weight"):
        write(tmp_path / "file", {"layer.weight": tensor})


def test_a_file_that_does_not_fit_is_an_error(tmp_path):
    with files_of_at_most(1000), raised(OSError, errno=errno.EFBIG):
        write(tmp_path / "file", {"a": torch.ones(1000)})


# Copies in memory


def test_copies_do_not_change_with_the_tensors():
    tensors = tensors_of_all_kinds()
    copies = Arena().copies(tensors)
    assert_same(copies, tensors)
    tensors["kind/torch.float64"].zero_()
    assert_same(copies, tensors_of_all_kinds())


def test_the_next_copies_take_the_same_memory():
    arena = Arena()
    first = arena.copies({"a": torch.ones(1000), "b": torch.ones(3, dtype=torch.int8)})
    places = [tensor.data_ptr() for tensor in first.values()]
    second = arena.copies({"a": torch.zeros(1000), "b": torch.zeros(3, dtype=torch.int8)})
    assert [tensor.data_ptr() for tensor in second.values()] == places
    assert not second["a"].any()


def test_memory_can_be_reserved_beforehand():
    arena = Arena()
    arena.reserve([torch.ones(2**20)])
    place = arena.copies({"a": torch.ones(2**20)})["a"].data_ptr()
    assert arena.copies({"b": torch.ones(2**20)})["b"].data_ptr() == place


def test_more_tensors_get_more_memory():
    arena = Arena()
    arena.copies({"a": torch.ones(10)})
    larger = arena.copies({"a": torch.ones(10), "b": torch.full((2000,), 7.0)})
    assert larger["b"].eq(7).all()
    assert arena.copies({}) == {}
