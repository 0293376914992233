"""The tutorial: its problems are answered by their commands, and its figures are drawn from stored runs."""

import importlib.util
import re
import shlex
import sys

import build_site
import pytest
from pictures import content_of, read
from typer.testing import CliRunner

from paceline.cli import app

FOLDER = build_site.TREE / "docs" / "tutorial"
CHAPTERS = sorted(FOLDER.glob("[0-9]*.md"))
WORDS = range(550, 1200)
"""Of a chapter, for 5 to 8 minutes."""


@pytest.fixture(scope="module")
def figures():
    """The script of the figures, as a module."""
    names = ("chart", "tasks", "figures")
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("figures", FOLDER / "figures.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)


def section(text, title):
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_there_are_ten_chapters_and_the_list_has_them():
    names = re.findall(r"\]\((\d\d-[a-z-]+\.md)\)", (FOLDER / "README.md").read_text())
    assert names == [path.name for path in CHAPTERS]
    assert len(names) == 10


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_is_read_in_five_to_eight_minutes(path):
    assert len(path.read_text().split()) in WORDS


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_command_of_a_problem_prints_the_answer(path, monkeypatch):
    monkeypatch.chdir(build_site.TREE)
    text = path.read_text()
    [command] = re.findall(r"(?m)^    paceline (.*)$", section(text, "Problem"))
    expected = re.findall(r"`([^`]+)`", section(text, "Answer").split(" `sync` ")[0])
    assert expected
    result = CliRunner().invoke(app, shlex.split(command))
    printed = result.stdout + result.stderr
    assert [figure for figure in expected if figure not in printed] == []
    assert result.exit_code == (1 if "PL-033" in expected else 0)


def test_every_figure_is_stored_drawn_and_shown_with_its_command(figures):
    text = "".join(path.read_text() for path in CHAPTERS)
    for folder, kind in (("data", "json"), ("figures", "svg")):
        assert {path.stem for path in (FOLDER / folder).glob(f"*.{kind}")} == set(figures.FIGURES)
    for name in figures.FIGURES:
        assert f"](figures/{name}.svg)" in text
        assert f"`python docs/tutorial/figures.py {name}`" in text


def test_figures_are_drawn_from_their_data(figures):
    for name in figures.FIGURES:
        drawn = figures.draw(figures.stored(name))
        shown = (FOLDER / "figures" / f"{name}.svg").read_text()
        assert content_of(read(shown)) == content_of(read(drawn)), "python docs/tutorial/figures.py --draw"


QUICK = ("data-parallel", "ring-and-tree", "gossip", "bubble", "checkpoints")
LONGER = ("batch-size", "k-sync", "staleness", "bandwidth")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONGER)])
def test_figures_repeat_their_stored_results(figures, name):
    made, stored = figures.FIGURES[name](), figures.stored(name)
    assert made["lines"].keys() == stored["lines"].keys()
    for line, points in made["lines"].items():
        for point, expected in zip(points, stored["lines"][line], strict=True):
            assert point == pytest.approx(expected, rel=0.02), "python docs/tutorial/figures.py"
