"""Links of the pages lead to headings that exist, and the navigation has every page."""

import re
from pathlib import Path

import build_site
import pytest

DOCS = build_site.TREE / "docs"
PAGES = [path for path in build_site.source_files() if path.suffix == ".md"]
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def prose(path):
    return re.sub(r"(?sm)^```.*?^```$", "", path.read_text())


def anchors(path):
    """Return the anchors of a page, as GitHub and the site derive them from headings."""
    found = []
    for heading in _HEADING.findall(prose(path)):
        words = re.sub(r"\]\([^)]*\)", "]", heading).lower()
        found.append(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(build_site.TREE)))
def test_anchors_of_links_are_headings(page):
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", prose(page)):
        path = page.parent / target if target else page
        assert anchor in anchors(path), f"{target}#{anchor}"


def test_every_page_is_in_the_navigation():
    text = (build_site.SITE / "home.txt").read_text()
    listed = set(re.findall(r"(?m)^(?:.*<)?([\w./-]+?)>?$", text))
    folders = {name.rpartition("/")[0] for name in listed if name.endswith(("README", "index"))}
    for page in PAGES:
        name = page.relative_to(build_site.TREE).with_suffix("").as_posix()
        assert name in listed or name.rpartition("/")[0] in folders - {"", "docs"}, name


def test_folders_in_links_become_pages(tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "folder").mkdir()
    page.write_text("[a](folder) [b](folder/) [c](https://example.com/folder) [d](other.md#folder)")
    assert build_site.linked(page) == (
        "[a](folder/index.md) [b](folder/index.md) [c](https://example.com/folder) [d](other.md#folder)"
    )
    assert Path(build_site.SITE / "home.txt").exists()
