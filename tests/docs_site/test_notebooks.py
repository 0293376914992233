"""The notebooks run from the first cell to the last, have no stored outputs, and show rich results."""

import ast
import json

import build_site
import pytest

FOLDER = build_site.TREE / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(path):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def execute(source, namespace):
    """Run a cell, and return the value of its last line if it is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_tables(path):
    namespace = {"__name__": "notebook"}
    shown = [execute(source, namespace) for source in code_cells(path)]
    rich = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert rich
    assert all("<table" in text or "<svg" in text for text in rich)
