"""Generated pages are up to date with the tree, and links have targets."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import typer
from checkpoints.shards import save
from pictures import content_of, read

from benchmarks import __main__ as benchmarks
from paceline import cli
from paceline.checkpoints import Store
from paceline.strategies import STRATEGIES

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted([*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")])


def script(name):
    """A script of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gallery():
    return script("gallery")


def test_every_strategy_has_a_scene(gallery):
    assert set(gallery.SCENES) == set(STRATEGIES)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_page_is_up_to_date(name, gallery):
    expected = gallery.page(name, STRATEGIES[name], gallery.SCENES[name])
    assert (DOCS / "gallery" / f"{name}.md").read_text() == expected, "run make docs"


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_picture_is_up_to_date(name, gallery):
    scene = gallery.SCENES[name]
    drawn = gallery.picture(scene, scene.spec, scene.caption)
    shown = (DOCS / "gallery" / f"{name}.svg").read_text()
    assert content_of(read(shown)) == content_of(read(drawn)), "run make docs"


def test_the_page_of_other_systems_is_up_to_date():
    assert (DOCS / "other_systems.md").read_text() == script("other_systems").page(), "run make docs"


def reading_script():
    [found] = re.findall(r"(?s)```python\n(.*?)```", (DOCS / "checkpoints.md").read_text())
    assert "paceline" not in found
    return found


def test_a_checkpoint_is_read_without_paceline_as_its_page_says(tmp_path, monkeypatch, capsys):
    for step in (1, 2):
        made = save(Store(tmp_path), step)
    monkeypatch.setattr(sys, "argv", ["read.py", str(tmp_path)])
    exec(reading_script(), {})
    printed = capsys.readouterr().out.splitlines()
    assert "rank-00002.safetensors parameters/0.weight (40, 4)" in printed
    assert len(printed) == sum(len(made.shard(rank).tensors) for rank in range(made.ranks))


@pytest.mark.parametrize("name", ["manifest.json", "rank-00001.safetensors"])
def test_the_page_finds_damage_without_paceline(tmp_path, monkeypatch, name):
    path = save(Store(tmp_path), 1).folder / name
    path.write_bytes(
        path.read_bytes().replace(b"0.weight", b"0.Weight").replace(b"all-reduce", b"all-reducE")
    )
    monkeypatch.setattr(sys, "argv", ["read.py", str(tmp_path)])
    with pytest.raises(AssertionError):
        exec(reading_script(), {})


def commands(start):
    """Return the text after these words in the commands of all pages."""
    found = re.compile(rf"`{re.escape(start)}( [^`]*)?`")
    return sorted({tuple(words.split()) for page in PAGES for words in found.findall(page.read_text())})


@pytest.mark.parametrize("words", commands("python -m benchmarks"), ids=" ".join)
def test_a_benchmark_that_a_page_names_can_be_run_with_these_options(words):
    if words == ("--help",):
        return
    for chosen in benchmarks.parser().parse_args(words).names:
        name, *parts = chosen.split(":")
        assert name in {*benchmarks.BENCHMARKS, "NAME"}
        assert not parts or set(parts) <= set(importlib.import_module(f"benchmarks.{name}").PARTS)


@pytest.mark.parametrize("words", commands("paceline bench"), ids=" ".join)
def test_a_measurement_that_a_page_names_can_be_run_with_these_options(words):
    bench = typer.main.get_command(cli.app).commands["bench"]
    if words:
        bench.make_context("bench", list(words))  # raises if there is no such option


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS.parent)))
def test_links_to_files_lead_to_files(page):
    prose = re.sub(r"(?s)```.*?```", "", page.read_text())
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", prose)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []
