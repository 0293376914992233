"""Strategies, collectives and schedules never use torch.distributed: import-linter cannot forbid a submodule."""

import ast
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent
FILES = [path for name in ("strategies", "collectives", "schedules") for path in (ROOT / name).rglob("*.py")]


def modules_in(path):
    """The modules that a file imports, and the attributes of torch that it reads."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_strategy_does_not_use_torch_distributed(path):
    assert [name for name in modules_in(path) if name.startswith("torch.distributed")] == []


@pytest.mark.parametrize(
    "line",
    [
        "import torch.distributed as dist",
        "from torch import distributed",
        "from torch.distributed import send",
        "torch.distributed",
    ],
)
def test_each_way_to_use_it_is_found(tmp_path, line):
    path = tmp_path / "strategy.py"
    path.write_text(line, encoding="utf-8")
    assert any(name.startswith("torch.distributed") for name in modules_in(path))
