"""Build the site: static pages with an offline search, for any web server or for reading from the disk.

    make site        # build/site/html/index.html

The folder `build/site/source` has the Markdown of docs/ and of the tree's root unchanged, and pages that are generated
from the code: the reference of Python names, commands and errors. A warning of Sphinx (a link or an anchor without a
target, a page that is not in the navigation) is an error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

import command_pages
import error_pages
import name_pages
import notebook_pages

SITE = Path(__file__).parent
TREE = SITE.parents[1]
BUILD = TREE / "build" / "site"

ROOT_PAGES = ("README.md", "README.zh.md", "CHANGELOG.md", "CONTRIBUTING.md")
COPIED = ("*.md", "*.svg", "*.png", "*.py", "*.ipynb")
_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
_LIST_OF_FOLDER = "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=BUILD)
    folder = parser.parse_args().folder
    sys.exit(build(folder))


def build(folder: Path) -> int:
    """Build the site in `folder`/html. Return 0, or another number if there was a warning."""
    try:
        from sphinx.cmd.build import build_main
    except ImportError:
        sys.exit("Sphinx is not installed: `make site` installs it, or pip install -e '.[site]'")
    write_source(folder / "source")
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--fresh-env", "--builder", "html"]
    places = [str(folder / "source"), str(folder / "html")]
    failed = build_main(
        [*options, "--conf-dir", str(SITE), "--doctree-dir", str(folder / "doctrees"), *places]
    )
    if not failed:
        print(f"{folder / 'html' / 'index.html'}")
    return failed


def write_source(source: Path) -> None:
    """Write the source folder of Sphinx. It mirrors the tree, so relative links stay valid."""
    shutil.rmtree(source, ignore_errors=True)
    for path in source_files():
        target = source / path.relative_to(TREE)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(linked(path), encoding="utf-8")
        else:
            shutil.copyfile(path, target)
    shutil.copyfile(SITE / "home.txt", source / "index.md")
    made_by = (name_pages, command_pages, error_pages, notebook_pages)
    generated = {name: text for module in made_by for name, text in module.pages().items()}
    generated["docs/decisions/index.md"] = decisions()
    for name, text in generated.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def source_files() -> list[Path]:
    """Return the files of the tree that the site shows or links to."""
    folders = [TREE / "docs", TREE / "examples"]
    found = [path for folder in folders for kind in COPIED for path in folder.rglob(kind)]
    return [TREE / name for name in ROOT_PAGES] + [path for path in found if SITE not in path.parents]


def linked(path: Path) -> str:
    """Return the text of a page. Links to folders lead to their lists, and a list contains its folder."""
    text = _LINK.sub(lambda link: _page_of(path.parent, link[0]), path.read_text(encoding="utf-8"))
    is_list = path.name == "README.md" and path.parent.parent == TREE / "docs"
    is_list = is_list and len(list(path.parent.glob("*.md"))) > 1
    return text + _LIST_OF_FOLDER if is_list else text


def _page_of(folder: Path, link: str) -> str:
    if not (folder / link).is_dir():
        return link
    name = "README.md" if (folder / link / "README.md").exists() else "index.md"
    return f"{link.rstrip('/')}/{name}"


def decisions() -> str:
    """Return the list of decision pages."""
    lines = ["# Design decisions", "", "The question, the choice and its price.", ""]
    for path in sorted((TREE / "docs" / "decisions").glob("*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n" + _LIST_OF_FOLDER


if __name__ == "__main__":
    main()
