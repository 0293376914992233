import json
import os

import pytest
from chosen_runs import run_of
from disks import files_of_at_most
from typer.testing import CliRunner

from paceline.cli import app


def invoke(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)])


@pytest.fixture
def saved(tmp_path):
    for name, workers in (("narrow", 4), ("wide", 6)):
        run_of("sync", workers=workers).save(tmp_path / name)
    return tmp_path


def test_runs_made_elsewhere_are_compared(saved):
    page = saved / "page.html"
    result = invoke(saved / "narrow", saved / "wide", "--out", page)
    assert result.exit_code == 0, result.stderr
    assert [line.split("  ")[0] for line in result.stdout.splitlines()[1:3]] == [
        "sync, 4 workers",
        "sync, 6 workers",
    ]
    assert str(page) in result.stdout
    assert "sync, 6 workers" in page.read_text()


def test_one_run_is_a_page_too(saved, monkeypatch):
    monkeypatch.chdir(saved)
    assert invoke("narrow").exit_code == 0
    assert (saved / "report.html").is_file()


def test_a_directory_without_a_run_has_exit_code_2(tmp_path):
    result = invoke(tmp_path, "--out", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "must hold a saved run" in result.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_damaged_run_has_exit_code_2(saved):
    (saved / "wide" / "history.jsonl").write_text("{")
    result = invoke(saved / "narrow", saved / "wide", "--out", saved / "page.html")
    assert result.exit_code == 2
    assert "must hold a whole history.jsonl" in result.stderr


def test_a_run_of_a_newer_version_has_exit_code_2(saved):
    path = saved / "wide" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    result = invoke(saved / "wide", "--out", saved / "page.html")
    assert result.exit_code == 2
    assert "read it with a newer Paceline" in result.stderr


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path):
    result = invoke(tmp_path / "nowhere", "--out", tmp_path)
    assert result.exit_code == 2
    assert "--out must be a writable file" in result.stderr


def test_no_directory_has_exit_code_2():
    assert invoke().exit_code == 2


@pytest.mark.parametrize("name", ["run.json", "history.jsonl", "spans.npz", "model.safetensors"])
def test_a_pipe_in_a_saved_run_has_exit_code_2(saved, name):
    (saved / "wide" / name).unlink()
    os.mkfifo(saved / "wide" / name)
    result = invoke(saved / "wide", "--out", saved / "page.html")
    assert result.exit_code == 2
    assert f"must hold a whole {name}" in result.stderr
    assert "Traceback" not in result.stderr


def test_deep_json_has_exit_code_2(saved):
    (saved / "wide" / "run.json").write_text("[" * 100_000)
    result = invoke(saved / "wide", "--out", saved / "page.html")
    assert result.exit_code == 2
    assert "RecursionError" in result.stderr


def test_a_comparison_that_names_a_folder_outside_has_exit_code_2(saved):
    (saved / "hostile").mkdir()
    content = {"format": 1, "entries": [{"name": "sync", "runs": [str(saved / "wide")]}]}
    (saved / "hostile" / "comparison.json").write_text(json.dumps(content))
    result = invoke(saved / "hostile", "--out", saved / "page.html")
    assert result.exit_code == 2
    assert "use a path inside this folder" in result.stderr


def test_a_page_that_does_not_fit_on_the_disk_leaves_the_old_one(saved):
    page = saved / "page.html"
    page.write_text("old")
    with files_of_at_most(1000):
        result = invoke(saved / "narrow", "--out", page)
    assert result.exit_code == 1
    assert f"{page} could not be saved: File too large" in result.stderr
    assert page.read_text() == "old"
    assert not list(saved.glob(".sav*"))
