"""Words of different lengths from three invented languages. A collate function pads the batches.

The data is a list of dictionaries. The model takes their entries by name and returns its own loss, like Hugging Face
models, so the task needs no loss. Two loader processes per worker build the next batches in the background.

    paceline train examples/variable_lengths.py --strategy all-reduce --workers 2 --epochs 4
"""

import random
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import paceline as pl

SYLLABLES = (("ka", "ro", "mi", "tu"), ("sh", "ark", "en", "ol"), ("lu", "mi", "ela", "ro"))
LETTERS = " " + "".join(sorted({letter for syllables in SYLLABLES for letter in "".join(syllables)}))


def words(count: int, seed: int) -> list[dict[str, Any]]:
    """Return words of 2 to 6 syllables, and the language of each."""
    chance, rows = random.Random(seed), []
    for _ in range(count):
        language = chance.randrange(len(SYLLABLES))
        word = "".join(chance.choices(SYLLABLES[language], k=chance.randint(2, 6)))
        rows.append({"word": word, "label": language})
    return rows


def padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Collate a batch: letters as numbers, padded with spaces to the longest word, and the lengths of the words."""
    codes = [torch.tensor([LETTERS.index(letter) for letter in row["word"]]) for row in rows]
    return {
        "codes": nn.utils.rnn.pad_sequence(codes, batch_first=True),
        "lengths": torch.tensor([len(each) for each in codes]),
        "labels": torch.tensor([row["label"] for row in rows]),
    }


class Classifier(nn.Module):
    """Recurrent network over letters. It classifies the state at the end of a word."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), 16)
        self.read = nn.GRU(16, 32, batch_first=True)
        self.decide = nn.Linear(32, len(SYLLABLES))

    def forward(self, codes: Tensor, lengths: Tensor, labels: Tensor) -> dict[str, Tensor]:
        states, _ = self.read(self.embed(codes))
        logits = self.decide(states[torch.arange(len(codes)), lengths - 1])
        # The mean over words, not over letters: slices are weighted by their number of words.
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


task = pl.Task(
    model=Classifier,
    data=words(2000, seed=0),
    collate=padded,
    optimizer=partial(torch.optim.Adam, lr=5e-3),
    batch_size=64,
    loaders=2,
)
