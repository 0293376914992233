"""Write docs/other_systems.md from the table of names of other systems: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.strategies import STRATEGIES
from paceline.strategies.registry.aliases import OTHER_SYSTEMS, OtherSystem
from paceline.strategies.registry.table import word_of

PAGE = Path(__file__).with_suffix(".md")

BEGINNING = """\
# Names in other systems

This page is for users of other systems. The first column has the name of a feature there, the second column what to
write here. If there is an equivalent strategy, the names in `code` in the first column work too: `--strategy ddp` is
`--strategy all-reduce`. If there is none, the error message names an alternative.

| there | here | difference |
|---|---|---|
"""

END = """
Three terms have the same meaning everywhere in Paceline. A **worker** computes gradients (elsewhere: replica, device,
client). A **rank** is any process of a run, including servers. A **step** is one update of the parameters. The batch
size of a task is the global one, over all workers; in scripts for PyTorch and Horovod it is the batch size of one
worker.

`make docs` generates this page from `src/paceline/strategies/registry/aliases.py`. To add a name, add a row there.
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{len(OTHER_SYSTEMS)} rows in {PAGE}")


def page() -> str:
    return (
        BEGINNING
        + "".join(f"| {_there(word)} | {_here(word)} | {word.differs} |\n" for word in OTHER_SYSTEMS)
        + END
    )


def _there(word: OtherSystem) -> str:
    return f"{word.theirs} ({', '.join(f'`{name}`' for name in word.names)})"


def _here(word: OtherSystem) -> str:
    if word.is_alias:
        return f"[`{word.ours}`](gallery/{word_of(word.names[0])}.md)"
    return re.sub(
        r"paceline compare --simulate|--ray|pl\.Ray|[a-z-]+(:[a-z]+=[a-z]+)?", _as_code, word.instead
    )


def _as_code(match: re.Match[str]) -> str:
    text = match[0]
    is_word = text.partition(":")[0] in STRATEGIES or not text.replace("-", "").isalpha() or text == "--ray"
    return f"`{text}`" if is_word else text


if __name__ == "__main__":
    main()
