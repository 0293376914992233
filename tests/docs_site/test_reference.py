"""The generated reference is complete: public names, commands and errors."""

import re

import command_pages
import error_pages
import name_pages
import typer

import paceline as pl
from paceline.cli import app
from paceline.cli.explain import codes, explanation


def test_every_public_name_is_on_one_page():
    grouped = [name for names in name_pages.GROUPS.values() for name in names]
    assert sorted([*grouped, *name_pages.MODULES]) == sorted(pl.__all__)


def test_a_class_is_described_with_its_fields_and_methods():
    text = name_pages.pages()["reference/tasks-and-runs.md"]
    assert "{py:function} paceline.train(task" in text
    assert "{py:class} paceline.Task(*, model" in text
    assert "{py:property} step_seconds" in text
    assert "{py:method} save(directory)" in text
    memory = text.partition("{py:attribute} memory\n")[2].partition(":::")[0]
    assert "rank" in memory, "the text below the field"


def test_modules_list_their_public_names():
    made = name_pages.pages()
    for module in name_pages.MODULES:
        names = name_pages.names_of(getattr(pl, module))
        assert names
        for name in names:
            assert re.search(rf"paceline\.{module}\.{name}\b", made[f"reference/{module}.md"])


def test_every_command_and_option_is_there():
    [text] = command_pages.pages().values()
    for name, command in typer.main.get_command(app).commands.items():
        section = text.partition(f"## paceline {name}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            if not getattr(parameter, "hidden", False) and parameter.param_type_name == "option":
                assert parameter.opts[0] in section, (name, parameter.opts)


def test_every_error_has_a_page_with_its_class_and_fields():
    kinds = error_pages.classes()
    assert sorted(kinds) == codes()
    for code, kind in kinds.items():
        assert explanation(code).startswith(f"# {code} {kind.__name__}\n")
    page = error_pages.page("PL-033")
    assert "`rank`, `step`, `loss`, `cause`" in page
