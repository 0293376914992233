"""A character-level GPT with an ordinary training loop, on several workers with any whole-model strategy.

python examples/own_loop.py                                                # alone
paceline run --workers 4 --strategy k-sync:k=3 examples/own_loop.py        # the same script on 4 workers
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline as pl

TEXT = "the quick brown fox jumps over the lazy dog, and the lazy dog sleeps on. " * 40
LETTERS = sorted(set(TEXT))
CONTEXT, WIDTH, HEADS, LAYERS = 16, 32, 4, 2


class Windows(Dataset):
    """Each sample is a piece of the text, and the same piece one letter later."""

    def __init__(self) -> None:
        self.letters = torch.tensor([LETTERS.index(letter) for letter in TEXT])

    def __len__(self) -> int:
        return len(self.letters) - CONTEXT

    def __getitem__(self, start):
        piece = self.letters[start : start + CONTEXT + 1]
        return piece[:-1], piece[1:]


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(LETTERS))

    def forward(self, letters):
        mask = nn.Transformer.generate_square_subsequent_mask(letters.shape[1])
        return self.head(self.blocks(self.letters(letters) + self.places, mask=mask, is_causal=True))


def main(steps: int) -> None:
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(Windows(), batch_size=64, shuffle=True, drop_last=True)
    model, optimizer, loader = pl.prepare(model, optimizer, loader)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step, (inputs, targets) in zip(range(steps), loader, strict=False):
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.clip_grad_norm_(1.0)
        pl.log(loss=loss)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            pl.print(f"step {step}: loss {loss.item():.3f}")
    pl.finish()
    if pl.is_main():
        print(f"trained {sum(p.numel() for p in model.parameters()):,} parameters on {pl.workers()} workers")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
