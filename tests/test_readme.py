"""README is short, its commands and code work unchanged, and the Chinese version has the same content."""

import contextlib
import importlib
import io
import re
import shlex
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest
import typer

from paceline.cli import app

TREE = Path(__file__).parents[1]
ENGLISH = (TREE / "README.md").read_text()
CHINESE = (TREE / "README.zh.md").read_text()
SCREENS = 120  # lines of two screens
COMMANDS = {
    name: {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
    for name, command in typer.main.get_command(app).commands.items()
}


def without_fences(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def code(text):
    """Return the blocks of code (fenced and indented), and the text between marks."""
    fenced = re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:^    .*\n)+", without_fences(text), re.MULTILINE)
    marked = re.findall(r"<!-- (\w+): begin -->\n(.*?)<!-- \1: end -->", text, re.DOTALL)
    return {"fenced": fenced, "indented": indented, "marked": marked}


def typed(text):
    """Return the commands of `paceline` in a text, each as a list of words."""
    joined = text.replace("\\\n", " ")
    lines = re.findall(r"^(?:    )?(paceline \S.*)$", joined, re.MULTILINE)
    inline = re.findall(r"`(paceline [^`]*)`", joined)
    return [shlex.split(command, comments=True)[1:] for command in (*lines, *inline)]


def test_it_fits_two_screens():
    assert ENGLISH.count("\n") <= SCREENS
    assert not re.search(r"^\|", ENGLISH, re.MULTILINE), "tables are in docs/"


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(f"docs/{name}.md" for name in ("README", "bench", "clusters", "compare", "faq", "report", "speed")),
        *(f"docs/tutorial/{path.name}" for path in sorted((TREE / "docs" / "tutorial").glob("[0-9]*.md"))),
    ],
)
def test_commands_and_options_are_there(page):
    commands = typed((TREE / page).read_text())
    assert commands
    for name, *words in commands:
        assert name in COMMANDS, name
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert options <= COMMANDS[name], f"paceline {name}"


def test_the_extras_are_those_of_the_package():
    extras = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"'\.\[(\w+)\]'", ENGLISH)) == set(extras) - {"dev", "site"}


def test_the_lines_of_the_demo_are_those_of_its_page():
    [shown], [complete] = (code(text)["marked"] for text in (ENGLISH, (TREE / "docs/demo.md").read_text()))
    assert shown[1] in complete[1], "docs/demo.md has the output of `make demo`"


@pytest.mark.slow
def test_its_code_runs_and_says_what_the_text_says():
    said = io.StringIO()
    names = {}
    with contextlib.redirect_stdout(said):
        for block in code(ENGLISH)["fenced"]:
            exec(block.removeprefix("```python\n").removesuffix("```"), names)
    told = re.search(r"([\d.]+), ([\d.]+) and ([\d.]+) ms a step", ENGLISH).groups()
    # Each simulation prints a line. The run that is printed before them has its own seconds.
    assert tuple(re.findall(r"([\d.]+) ms a step, loss", said.getvalue())) == told


# In Chinese


@pytest.mark.parametrize("kind", ["fenced", "indented", "marked"])
def test_code_and_figures_are_the_same_in_both_languages(kind):
    assert code(ENGLISH)[kind]
    assert code(CHINESE)[kind] == code(ENGLISH)[kind], "change README.md and README.zh.md together"


def test_both_languages_have_the_same_sections_links_figures_and_words_of_code():
    def levels(text):
        return re.findall(r"^(#+) ", text, re.MULTILINE)

    def links(text):
        return sorted(re.findall(r"\]\(([^)]+)\)", text))

    def words_and_figures(text):
        prose = re.sub(r"^    .*$", "", without_fences(text), flags=re.MULTILINE)
        return sorted(re.findall(r"`[^`]+`|\d+\.\d+", prose))

    assert levels(CHINESE) == levels(ENGLISH)
    assert links(CHINESE.replace("(README.md)", "(README.zh.md)")) == links(ENGLISH)
    assert words_and_figures(CHINESE) == words_and_figures(ENGLISH)


# Speed


def rows():
    """The rows of the measured tables: a mapping from heading to text each."""
    (block,) = re.findall(
        r"<!-- measured: begin -->\n(.*?)<!-- measured: end -->",
        (TREE / "docs/speed.md").read_text(),
        re.DOTALL,
    )
    for table in block.strip().split("\n\n"):
        header, _, *lines = (
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        )
        yield from (dict(zip(header, line, strict=True)) for line in lines)


def test_every_figure_says_how_to_repeat_it():
    benchmarks = importlib.import_module("benchmarks.__main__").BENCHMARKS
    for row in rows():
        command = row["repeat by"].strip("`")
        by_benchmark = re.fullmatch(r"python -m benchmarks (\w+)", command)
        assert by_benchmark is None or by_benchmark[1] in benchmarks, command
        assert by_benchmark is not None or command.startswith("paceline bench "), row["what"]


def test_what_misses_its_aim_is_in_bold():
    for row in rows():
        aim = re.fullmatch(r"at (least|most) ([\d./]+)", row["aim"])
        if aim is None:
            continue
        sign, bound = {"least": -1, "most": 1}[aim[1]], Fraction(aim[2])
        figures = " ".join(text for name, text in row.items() if name not in ("what", "aim", "repeat by"))
        bold = re.findall(r"\*\*([\d.]+)\*\*", figures)
        plain = re.findall(r"\d+(?:\.\d+)?", re.sub(r"\*\*.*?\*\*|\(.*?\)", "", figures))
        assert all(sign * Fraction(figure) <= sign * bound for figure in plain), row["what"]
        assert all(sign * Fraction(figure) > sign * bound for figure in bold), row["what"]
