import hashlib
import math
import os
import pickle
import socket
import zipfile

import pytest
from refusals import has, raised, refused

from paceline.errors import ConfigurationError, DamagedError
from paceline.files.checksums import Checksum
from paceline.files.reading import (
    Fields,
    Folder,
    checksum,
    clean,
    list_of,
    mapping_of,
    number,
    optional,
    parse_json,
    seconds,
    text,
    whole,
)


def read(folder, name="file", **words):
    with Folder(folder).opened(name, **words) as file:
        return file.read()


# Files


def test_a_regular_file_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"words")
    assert read(tmp_path) == b"words"
    assert read(tmp_path, most_bytes=5) == b"words"


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    (tmp_path / "file").write_bytes(b"words")
    os.truncate(tmp_path / "file", 2**40)  # needs no space on the disk
    with raised(DamagedError, file="file", reason=has("1,000", "1,099,511,627,776")):
        read(tmp_path, most_bytes=1000)


def as_a_link(path):
    (path.parent.parent / "outside").write_bytes(b"secret")
    path.symlink_to(path.parent.parent / "outside")


def as_a_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))  # the name of a socket must be short


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        as_a_link,
        as_a_socket,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
    ],
    ids=["pipe", "folder", "link outside", "socket", "device", "loop"],
)
def test_what_is_not_a_regular_file_is_not_opened(tmp_path, monkeypatch, make):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    make(folder / "file")
    with raised(DamagedError, file="file"):
        read(folder)


def test_whatever_a_parser_raises_names_the_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for error in (
        RecursionError("deep"),
        MemoryError("large"),
        KeyError("missing"),
        zipfile.BadZipFile("no"),
    ):
        with (
            raised(DamagedError, file="file", reason=has(type(error).__name__)),
            Folder(tmp_path).opened("file"),
        ):
            raise error


def test_the_reason_is_short_and_takes_no_command_of_a_terminal(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError) as caught, Folder(tmp_path).opened("file"):
        raise ValueError("\x1b[2J" + "long " * 10_000)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_file_is_verified_by_its_size_and_its_hash(tmp_path):
    (tmp_path / "file").write_bytes(b"words")
    right = Checksum(5, hashlib.sha256(b"words").hexdigest())
    folder = Folder(tmp_path)
    folder.verify("file", right)
    folder.verify_size("file", Checksum(5, "0" * 64))
    with raised(DamagedError, file="file", reason=has(6, 5)):
        folder.verify_size("file", Checksum(6, right.sha256))
    with raised(DamagedError, file="file", reason=has("0" * 12, right.sha256[:12])):
        folder.verify("file", Checksum(5, "0" * 64))


def test_an_error_about_a_file_can_be_sent_to_another_process(tmp_path):
    with pytest.raises(DamagedError) as caught:
        read(tmp_path, "missing")
    sent = pickle.loads(pickle.dumps(caught.value))
    assert str(sent) == str(caught.value)
    assert (sent.folder, sent.file) == (str(tmp_path), "missing")


# Folders


@pytest.mark.parametrize("name", ["", ".", "/", "/etc", "..", "a/../..", "a/../../outside", "a\0b"])
def test_a_path_that_leads_outside_is_refused(tmp_path, name):
    (tmp_path / "a").mkdir()
    with refused("directory", str(tmp_path)):
        Folder(tmp_path).folder(name)


@pytest.mark.parametrize("name", ["link", "link/inner", "missing", "file", "file/inner"])
def test_a_path_over_a_link_or_over_nothing_is_refused(tmp_path, name):
    (tmp_path / "outside" / "inner").mkdir(parents=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "file").touch()
    with refused("directory", str(folder)):
        Folder(folder).folder(name)


def test_the_folder_that_the_user_names_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"words")
    (tmp_path / "latest").symlink_to("real")
    assert read(tmp_path / "latest") == b"words"


def test_files_that_wait_for_their_places_are_the_newer_ones(tmp_path):
    (tmp_path / ".saved").mkdir()
    for name, data in {"file": b"old", "other": b"old", ".saved/file": b"new"}.items():
        (tmp_path / name).write_bytes(data)
    assert read(tmp_path) == b"new"
    assert read(tmp_path, "other") == b"old"


def test_a_link_in_the_place_of_newer_files_is_refused(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / ".saved").symlink_to(tmp_path / "outside")
    with refused("directory"):
        Folder(tmp_path / "folder").has("file")


# Values


@pytest.mark.parametrize(
    ("kind", "taken", "others"),
    [
        (text, ["", "words", "µs"], [None, 1, b"", []]),
        (whole, [0, 7, 2**63 - 1], [-1, 2**63, True, 1.0, "1", None]),
        (number, [0, -1, 1.5, math.inf, -math.inf], [True, None, "1", 10**400, -(10**400)]),
        (seconds, [0, 1.5], [-1.0, math.inf, math.nan, None]),
        (optional(whole), [None, 1], ["1", -1]),
        (list_of(whole), [[], [1, 2]], [None, {}, (1,), [1, None]]),
        (
            checksum,
            [],
            [None, [], {"bytes": -1, "sha256": "0" * 64}, {"bytes": 1, "sha256": "0" * 63}],
        ),
        (mapping_of(text, whole), [{}, {"a": 1}], [None, [], {"a": "1"}]),
    ],
    ids=["text", "whole", "number", "seconds", "optional", "list", "checksum", "mapping"],
)
def test_a_kind_takes_its_values_and_no_others(kind, taken, others):
    assert [kind(value) for value in taken] == taken
    for value in others:
        with raised(ValueError):
            kind(value)


def test_a_field_that_is_missing_or_of_another_kind_is_named():
    fields = Fields({"a": 1, "b": "x"})
    assert fields.get("a", whole) == 1
    assert fields.get("c", optional(whole), None) is None
    with raised(ValueError, "c"):
        fields.get("c", whole)
    with raised(ValueError, "b", 0, 9223372036854775807, "x"):
        fields.get("b", whole)


def test_text_is_cleaned_of_what_cannot_be_shown():
    assert clean("µs, naïve\n\tnext") == "µs, naïve\n\tnext"
    assert clean("a\x1b[31mb\x00c\x9bd\ud800e") == "a\ufffd[31mb\ufffdc\ufffdd\ufffde"


def test_json_is_utf_8():
    assert parse_json('{"a": "µ"}'.encode()) == {"a": "µ"}
    with pytest.raises(UnicodeDecodeError):
        parse_json(b'{"a": "\xff"}')
