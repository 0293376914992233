"""Pages that scripts make are what they make of the tree as it is; links lead somewhere."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

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
    drawn = gallery.picture(gallery.SCENES[name])
    assert (DOCS / "gallery" / f"{name}.svg").read_text() == drawn, "run make docs"


def test_the_words_of_other_systems_are_those_of_the_table():
    assert (DOCS / "words.md").read_text() == script("words").page(), "run make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS.parent)))
def test_links_to_files_lead_to_files(page):
    prose = re.sub(r"(?s)```.*?```", "", page.read_text())
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", prose)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []
