"""The notebooks as pages: their text and code. Outputs are not stored; run the notebook to see them."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "notebooks"


def pages() -> dict[str, str]:
    return {f"docs/notebooks/{path.stem}.md": page(path) for path in sorted(FOLDER.glob("*.ipynb"))}


def page(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [_cell(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    parts.insert(
        1, f"This page is a notebook: [{path.name}]({path.name}). Run it to see its tables and plots."
    )
    return "\n\n".join(parts) + "\n"


def _cell(kind: str, source: str) -> str:
    return f"```python\n{source}\n```" if kind == "code" else source
