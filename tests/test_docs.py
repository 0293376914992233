"""The gallery in docs/ is what its script makes of the strategies as they are."""

import importlib.util
import sys
from pathlib import Path

import pytest

from paceline.strategies import STRATEGIES

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    module = sys.modules["gallery"] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


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
