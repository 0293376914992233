import ast
from pathlib import Path

import paceline.costs as package


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_exported_names_exist() -> None:
    assert all(hasattr(package, name) for name in package.__all__)


def test_importing_it_never_needs_torch() -> None:
    allowed = ("paceline.costs", "paceline.errors", "paceline.files", "paceline.system")
    files = list(Path(package.__path__[0]).glob("*.py"))
    assert files
    for file in files:
        names = imported(file)
        assert "torch" not in {name.partition(".")[0] for name in names}
        assert {
            name for name in names if name.startswith("paceline") and not name.startswith(allowed)
        } == set()
