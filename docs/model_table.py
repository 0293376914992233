"""Measure docs/model_table.md: train every model of tests/zoo by every strategy of the table. It takes some minutes.

make model-table
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

PAGE = Path(__file__).with_suffix(".md")

Cells = Mapping[str, Mapping[str, str]]
"""Results by model and strategy."""

BEGINNING = """\
# Models and strategies

Small models of many kinds, trained by each strategy. `make model-table` measures this page, and `make test-all` checks
that it is still true. The models are in `tests/zoo`: those of Hugging Face (`transformers`) are built from
configurations, the others are written from their papers.

- **equal**: the weights of `single` after two steps, in float64, within 1e-12 (1e-9 for Hugging Face's models, which
  compute norms in float32). Models with BatchNorm: the weights of the slice-by-slice loop of
  [decision 0005](decisions/0005-batch-norm.md).
- **trains**: one worker gives the weights of `single`. Two workers reduce the loss.
- **A number** is a refusal. Its code and its reason are below the table.

Dropout is 0. There are two workers; for `hybrid` there are eight (`data=2,pipeline=2,tensor=2,zero=1`). `pipeline` and
`hybrid` use two micro-batches. The cluster is simulated, with real mathematics.

"""

REFUSALS = "\n## Refusals\n\n"


def main() -> None:
    from zoo.measuring import measure_row
    from zoo.rows import ROWS

    found: dict[str, dict[str, str]] = {}
    for row in ROWS:
        found[row] = measure_row(row)
        print(f"{row}: {found[row]}", flush=True)
    PAGE.write_text(page(found), encoding="utf-8")


def page(cells: Cells) -> str:
    """Return the page for these results."""
    reasons = list(
        dict.fromkeys(cell for row in cells.values() for cell in row.values() if _is_refusal(cell))
    )
    columns = list(next(iter(cells.values())))
    lines = [_line(["model", *columns]), "|" + "---|" * (len(columns) + 1)]
    for name, row in cells.items():
        lines.append(
            _line(
                [
                    name,
                    *(str(reasons.index(cell) + 1) if _is_refusal(cell) else cell for cell in row.values()),
                ]
            )
        )
    notes = "".join(f"{number}. {reason}\n" for number, reason in enumerate(reasons, 1))
    return BEGINNING + "\n".join(lines) + "\n" + (REFUSALS + notes if notes else "")


def read(text: str) -> dict[str, dict[str, str]]:
    """Return the results in a page."""
    table, _, notes = text.partition(REFUSALS)
    reasons = dict(line.split(". ", 1) for line in notes.splitlines())
    head, _, *rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    names = [each.strip() for each in head[1:]]
    cells = {row[0].strip(): [reasons.get(each.strip(), each.strip()) for each in row[1:]] for row in rows}
    return {row: dict(zip(names, given, strict=True)) for row, given in cells.items()}


def _is_refusal(cell: str) -> bool:
    return cell.startswith("PL-")


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
