"""Writes docs/words.md from the table that the commands answer by: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.strategies import STRATEGIES
from paceline.strategies.words import WORDS, Word

PAGE = Path(__file__).with_suffix(".md")

BEGINNING = """\
# Words people know

You come from another system and look for something. The first column is what it is called there, the second what to
write here. Where both are the same thing, the words of the first column in `code` work as well: `--strategy ddp` is
`--strategy all-reduce`. What is not here is answered by an error that says what to write instead.

| there | here | what differs |
|---|---|---|
"""

END = """
Three words mean the same everywhere here: a **worker** computes gradients (theirs: replica, device, client), a
**rank** is any process of a run, servers included, and a **step** is one update of the parameters. The batch size of a
task is the global one, over all workers: in PyTorch's and Horovod's scripts it is that of one worker.

This page is made from `src/paceline/strategies/words.py` by `make docs`. A word is missing? Add a row there.
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{len(WORDS)} rows in {PAGE}")


def page() -> str:
    return (
        BEGINNING + "".join(f"| {_there(word)} | {_here(word)} | {word.differs} |\n" for word in WORDS) + END
    )


def _there(word: Word) -> str:
    return f"{word.theirs} ({', '.join(f'`{name}`' for name in word.names)})"


def _here(word: Word) -> str:
    if word.is_alias:
        return f"[`{word.ours}`](gallery/{word.ours}.md)"
    return re.sub(
        r"paceline compare --simulate|--ray|pl\.Ray|[a-z-]+(:[a-z]+=[a-z]+)?", _as_code, word.instead
    )


def _as_code(match: re.Match[str]) -> str:
    text = match[0]
    is_word = text.partition(":")[0] in STRATEGIES or not text.replace("-", "").isalpha() or text == "--ray"
    return f"`{text}`" if is_word else text


if __name__ == "__main__":
    main()
