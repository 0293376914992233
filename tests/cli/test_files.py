import os
from pathlib import Path

import pytest
from refusals import refused

from paceline.cli.files import check_writable


def test_new_files_and_files_that_are_there_may_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("old.svg").write_text("")
    for path in (Path("old.svg"), Path("new.svg"), tmp_path / "new.svg"):
        check_writable("--plot", path)


def test_directories_and_places_that_are_not_there_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "no" / "new.svg"):
        with refused("--plot"):
            check_writable("--plot", path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_must_not_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with refused("--plot", str(tmp_path / "new.svg")):
        check_writable("--plot", tmp_path / "new.svg")
