import torch
from checkpoints.shards import assert_same, shard_of
from refusals import has, raised

from paceline.checkpoints.shard import Shard, file_name, read_shard, write_shard
from paceline.errors import DamagedError, SaveError
from paceline.files.checksums import Checksum
from paceline.files.reading import Folder


def test_a_shard_is_read_back_with_its_facts(tmp_path):
    shard = shard_of(3, step=12)
    written = write_shard(tmp_path, shard)
    assert (tmp_path / "rank-00003.safetensors").stat().st_size == written.nbytes
    assert_same(read_shard(Folder(tmp_path), 3, written), shard)


def test_facts_may_have_any_name_and_numbers_that_are_none(tmp_path):
    facts = {"a\x1b[2J": float("inf"), "µ": {"deep": [1, 2.5, None, True]}, "large": 2**80}
    written = write_shard(tmp_path, Shard(rank=0, tensors={}, facts=facts))
    assert read_shard(Folder(tmp_path), 0, written).facts == facts


def test_a_shard_that_is_not_the_one_expected_is_refused_by_name(tmp_path):
    written = write_shard(tmp_path, shard_of(0))
    other = Checksum(written.nbytes, "0" * 64)
    with raised(DamagedError, file="rank-00000.safetensors", reason=has("SHA-256", "0" * 12)):
        read_shard(Folder(tmp_path), 0, other)


def test_a_tensor_that_cannot_be_kept_is_named(tmp_path):
    shard = Shard(rank=0, tensors={"state/x": torch.ones(1, dtype=torch.complex128)}, facts={})
    with raised(SaveError, filename=has("rank-00000.safetensors"), strerror=has("state/x", "complex128")):
        write_shard(tmp_path, shard)


def test_files_are_in_the_order_of_the_ranks():
    names = [file_name(rank) for rank in (0, 9, 10, 99_999)]
    assert names == sorted(names)
