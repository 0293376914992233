"""The Chinese tutorial has the same chapters, commands, code, pictures, tables and figures as the English one."""

import re

import build_site
import pytest

ENGLISH = build_site.TREE / "docs" / "tutorial"
CHINESE = build_site.TREE / "docs" / "zh"
CHAPTERS = sorted(path.name for path in ENGLISH.glob("*.md"))


def commands(text):
    return re.findall(r"(?m)^    (paceline .*)$", text)


def code(text):
    return re.findall(r"(?ms)^```.*?^```$", text)


def pictures(text):
    """Return pictures and calculators in their order."""
    return re.findall(r"!\[[^\]]*\]\((?:[./]*/)?([\w/-]+\.svg)\)|data-calculator=\"(\w+)\"", text)


def tables(text):
    """Return the rows of all tables: the code, numbers and formulas of each cell."""
    rows = [row.strip("|").split("|") for row in re.findall(r"(?m)^\|.*\|$", text)]
    return [[re.findall(r"`[^`]+`|\d+(?:[.,]\d+)*", cell) for cell in row] for row in rows]


def spans(text):
    """Return the words in `code`, in alphabetical order: sentences may have another order."""
    return sorted(re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```$", "", text)))


def headings(text):
    return [marks for marks, _ in re.findall(r"(?m)^(#+) (.*)$", text)]


def test_every_chapter_is_translated():
    assert sorted(path.name for path in CHINESE.glob("*.md")) == CHAPTERS


@pytest.mark.parametrize("name", CHAPTERS)
@pytest.mark.parametrize("part", [commands, code, tables, headings, spans], ids=lambda part: part.__name__)
def test_both_languages_have_the_same(part, name):
    english, chinese = ((folder / name).read_text() for folder in (ENGLISH, CHINESE))
    assert part(chinese) == part(english)


@pytest.mark.parametrize("name", CHAPTERS)
def test_both_languages_show_the_same_pictures(name):
    english, chinese = (pictures((folder / name).read_text()) for folder in (ENGLISH, CHINESE))
    assert [(path.removeprefix("tutorial/"), kind) for path, kind in chinese] == [
        (path.removeprefix("tutorial/"), kind) for path, kind in english
    ]


def test_a_changed_number_or_option_is_noticed():
    text = "| a | `zero` | 1.5 s |\n    paceline train x --steps 2\n"
    assert tables(text) != tables(text.replace("1.5", "1.6"))
    assert commands(text) != commands(text.replace("2", "3"))
