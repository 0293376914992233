import hashlib
import io
import json

import pytest
from refusals import raised

from paceline.files.checksums import (
    Checksum,
    check_seal,
    fresh_memory,
    hash_file,
    read_file,
    seal,
    write_parts,
)

LARGE = bytes(range(256)) * (9 * 2**12) + b"a last chunk that is not full"


def of(data):
    return Checksum(len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("parts", [[], [b""], [b"a", b"", b"bc"], [LARGE, b"more"]], ids=len)
def test_parts_are_written_in_order_and_hashed(parts):
    out = io.BytesIO()
    assert write_parts(out, parts) == of(b"".join(parts))
    assert out.getvalue() == b"".join(parts)


@pytest.mark.parametrize("data", [b"", b"words", LARGE], ids=len)
def test_a_file_is_read_whole_and_checked(tmp_path, data):
    (tmp_path / "file").write_bytes(data)
    for checksum in (None, of(data)):
        with open(tmp_path / "file", "rb") as file:
            assert bytes(read_file(file, checksum)) == data
    with open(tmp_path / "file", "rb") as file:
        assert hash_file(file) == of(data)


@pytest.mark.parametrize("place", [0, 2**22 - 1, 2**22, len(LARGE) - 1])
def test_one_changed_bit_is_found(tmp_path, place):
    data = bytearray(LARGE)
    data[place] ^= 1
    (tmp_path / "file").write_bytes(data)
    with open(tmp_path / "file", "rb") as file, raised(ValueError, "SHA-256"):
        read_file(file, of(LARGE))


def test_a_file_of_another_size_is_not_read(tmp_path):
    (tmp_path / "file").write_bytes(LARGE[:-1])
    with (
        open(tmp_path / "file", "rb") as file,
        raised(ValueError, "9,437,213", "9,437,212"),
    ):
        read_file(file, of(LARGE))


@pytest.mark.parametrize("nbytes", [0, 1, 2**21, 2**21 + 1])
def test_fresh_memory_is_of_the_size_that_was_asked_for_and_can_be_written(nbytes):
    memory = fresh_memory(nbytes)
    assert len(memory) == nbytes
    memory[:] = b"x" * nbytes
    assert bytes(memory) == b"x" * nbytes


def test_a_sealed_text_is_json_and_holds_its_own_hash():
    sealed = seal({"step": 100, "name": "µ", "zeros": "0" * 64})
    check_seal(sealed)
    values = json.loads(sealed)
    assert values.pop("sha256") == hashlib.sha256(_without_hash(sealed)).hexdigest()
    assert values == {"step": 100, "name": "µ", "zeros": "0" * 64}


def _without_hash(sealed):
    return sealed.replace(json.loads(sealed)["sha256"].encode(), b"0" * 64)


def test_every_flipped_bit_and_every_cut_of_a_sealed_text_is_found():
    sealed = seal({"step": 100, "metric": 1e-05, "facts": {"a": [1.5, None]}})
    for place in range(len(sealed)):
        with raised(ValueError, "SHA-256"):
            check_seal(sealed[:place])
        for bit in range(8):
            with raised(ValueError, "SHA-256"):
                check_seal(sealed[:place] + bytes([sealed[place] ^ 1 << bit]) + sealed[place + 1 :])
