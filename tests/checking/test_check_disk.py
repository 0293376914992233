import os

import pytest
from disks import files_of_at_most

from paceline.checking.check import checkpoint_seconds


@pytest.mark.parametrize("nbytes", [0, 1000, 2**40])
def test_a_checkpoint_of_any_size_is_reckoned_and_nothing_is_left(tmp_path, monkeypatch, nbytes):
    monkeypatch.chdir(tmp_path)
    found = checkpoint_seconds(nbytes)
    assert found >= 0
    assert (found > 0) == (nbytes > 0)
    assert os.listdir(tmp_path) == []


def test_a_disk_without_room_is_not_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with files_of_at_most(100):
        assert checkpoint_seconds(1000) is None
    assert os.listdir(tmp_path) == []
