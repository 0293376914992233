"""Any damage is detected, and the error names the file."""

import json
import os
import random
import shutil

import pytest
from checkpoints.shards import assert_whole, save
from refusals import has, raised, refused

from paceline.checkpoints import FORMAT, Checkpoint, Store
from paceline.errors import ConfigurationError, DamagedError
from paceline.files.checksums import seal


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """About 20 KiB, of two ranks."""
    return save(Store(tmp_path_factory.mktemp("store")), 100, metric=0.5, ranks=2, size=200)


def put(whole, folder, name, content):
    """A copy with another file in it."""
    shutil.copytree(whole.folder, folder, dirs_exist_ok=True)
    (folder / name).write_bytes(content)
    return folder


def is_refused(folder, name):
    """Verify all files, or read one file."""
    looks = [lambda: Checkpoint.open(folder).verify()]
    if name.startswith("rank"):
        looks.append(lambda: Checkpoint.open(folder).shard(int(name[5:10])))
    return all(refuses(look, folder, name) for look in looks)


def refuses(look, folder, name):
    try:
        look()
    except DamagedError as error:
        return error.file == name and name in str(error) and str(folder) in str(error)
    except ConfigurationError as error:  # a flipped bit made it a newer format
        return name == "manifest.json" and str(folder / name) in str(error)
    return False


NAMES = ("manifest.json", "rank-00000.safetensors", "rank-00001.safetensors")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_cut_off_at_every_4_kib_is_refused_by_name(whole, tmp_path, name):
    folder = shutil.copytree(whole.folder, tmp_path / "copy")
    size = os.path.getsize(folder / name)
    for length in (size - 1, *reversed(range(0, size, 4096))):
        os.truncate(folder / name, length)
        assert is_refused(folder, name), length


@pytest.mark.slow
def test_a_large_file_cut_off_at_every_4_kib_or_with_flipped_bits_is_refused_by_name(tmp_path):
    made = save(Store(tmp_path), 1, ranks=1, size=2**18)
    [name], chance = [path.name for path in made.folder.glob("rank-*")], random.Random(1)
    size = os.path.getsize(made.folder / name)
    assert size > 12 * 2**20
    for _ in range(100):
        assert refused_with_a_bit_flipped(made.folder, name, chance.randrange(8 * size))
    assert_whole(made, ranks=1, size=2**18)
    for length in reversed(range(0, size, 4096)):
        os.truncate(made.folder / name, length)
        assert is_refused(made.folder, name), length


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_missing_or_too_long_is_refused_by_name(whole, tmp_path, name):
    content = (whole.folder / name).read_bytes()
    assert is_refused(put(whole, tmp_path, name, content + b"\n"), name)
    os.unlink(tmp_path / name)
    assert is_refused(tmp_path, name)


def flipped(content, bit):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def refused_with_a_bit_flipped(folder, name, bit):
    """Change a bit in place and restore it afterwards, because writing a new file takes longer."""
    with open(folder / name, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, bit // 8)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1 << bit % 8]), bit // 8)
        try:
            return is_refused(folder, name)
        finally:
            os.pwrite(file.fileno(), byte, bit // 8)


def test_each_of_1_000_random_flipped_bits_is_refused_by_its_files_name(whole, tmp_path):
    chance = random.Random(0)
    folder = shutil.copytree(whole.folder, tmp_path / "copy")
    sizes = [os.path.getsize(folder / name) for name in NAMES]
    for _ in range(1000):
        [name] = chance.choices(NAMES, sizes)
        bit = chance.randrange(8 * sizes[NAMES.index(name)])
        assert refused_with_a_bit_flipped(folder, name, bit), (name, bit)
    assert_whole(Checkpoint.open(folder), ranks=2, size=200)


@pytest.mark.slow
def test_every_flipped_bit_of_a_manifest_is_refused(whole, tmp_path):
    folder = shutil.copytree(whole.folder, tmp_path / "copy")
    for bit in range(8 * os.path.getsize(folder / NAMES[0])):
        assert refused_with_a_bit_flipped(folder, NAMES[0], bit), bit


def test_files_that_changed_places_are_found(whole, tmp_path):
    first, second = (whole.folder / name for name in NAMES[1:])
    folder = put(whole, tmp_path, NAMES[1], second.read_bytes())
    (folder / NAMES[2]).write_bytes(first.read_bytes())
    assert is_refused(folder, NAMES[1])


def test_sizes_alone_are_looked_at_where_time_is_short(whole, tmp_path):
    content = (whole.folder / NAMES[2]).read_bytes()
    folder = put(whole, tmp_path, NAMES[2], flipped(content, 8 * len(content) - 1))
    found = Checkpoint.open(folder)
    found.verify_sizes()
    os.truncate(folder / NAMES[2], len(content) - 1)
    with raised(DamagedError, file=NAMES[2]):
        found.verify_sizes()


# Manifests with valid checksums and wrong content


def with_values(whole, folder, **changes):
    values = json.loads((whole.folder / "manifest.json").read_bytes()) | changes
    del values["sha256"]
    return put(whole, folder, "manifest.json", seal(values))


@pytest.mark.parametrize("version", [FORMAT + 1, 99])
def test_a_newer_format_is_refused_whatever_else_it_says(whole, tmp_path, version):
    for content in (seal({"format": version}), json.dumps({"format": version}).encode()):
        folder = put(whole, tmp_path, "manifest.json", content)
        with refused("checkpoint", version, bound=has(FORMAT)):
            Checkpoint.open(folder)


@pytest.mark.parametrize(
    "files",
    [
        {"../../etc/passwd": {"bytes": 1, "sha256": "0" * 64}},
        {"rank-00001.safetensors": {"bytes": 1, "sha256": "0" * 64}},
        {"rank-00000.safetensors": {"bytes": 1, "sha256": "0" * 63}},
        {"rank-00000.safetensors": {"bytes": -1, "sha256": "0" * 64}},
        [],
    ],
    ids=["outside", "a rank left out", "short hash", "negative", "list"],
)
def test_a_manifest_of_other_files_is_refused(whole, tmp_path, files):
    folder = with_values(whole, tmp_path, files=files)
    with raised(DamagedError, file="manifest.json"):
        Checkpoint.open(folder)


def test_a_link_in_the_place_of_a_file_is_not_followed(whole, tmp_path):
    folder = put(whole, tmp_path / "copy", NAMES[1], b"")
    (folder / NAMES[1]).unlink()
    (folder / NAMES[1]).symlink_to(whole.folder / NAMES[1])
    with raised(DamagedError, file=NAMES[1]):
        Checkpoint.open(folder).shard(0)


def test_a_checkpoint_knows_its_age(whole):
    assert 0 <= whole.age_s < 3600
