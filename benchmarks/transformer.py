"""A transformer with about 11 million parameters, and random sentences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYERS, SAMPLES = 6, 32
"""Sizes of the model, and of a batch."""
_WIDTH, _HEADS, _LENGTH, _WORDS = 384, 6, 64, 512


class _Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.places = nn.Parameter(torch.zeros(_LENGTH, _WIDTH))

    def forward(self, sentences: Tensor) -> Tensor:
        return self.words(sentences) + self.places  # type: ignore[no-any-return]


def build_transformer() -> nn.Sequential:
    """Return the model. Its layers have the numbers 1 to `LAYERS`; 0 is the embedding, and the last is the head."""
    layers = (
        nn.TransformerEncoderLayer(_WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(LAYERS)
    )
    return nn.Sequential(_Embedding(), *layers, nn.Linear(_WIDTH, _WORDS))


def make_sentences() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(0)
    words, targets = torch.randint(0, _WORDS, (2, 8 * SAMPLES, _LENGTH), generator=chance)
    return words, targets


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
