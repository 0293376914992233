"""A small character transformer that learns to write the sentences of a small grammar.

The text is generated here, from a seed. The model has 2 layers of width 64 and a context of 64 characters.

    python examples/char_transformer.py
"""

import random
from functools import partial

import torch
from torch import Tensor, nn

import paceline as pl

CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2

GRAMMAR = {
    "sentence": ["{clause}.", "{clause}, then {clause}."],
    "clause": ["the {noun} {verb} the {noun}", "the {noun} {verb} {place}"],
    "noun": ["{adjective} {noun}", "worker", "server", "gradient", "ring", "queue", "clock"],
    "adjective": ["slow", "fast", "late", "quiet", "busy"],
    "verb": ["sends", "waits for", "averages", "forgets", "follows"],
    "place": ["in the rack", "on the wire", "behind the barrier"],
}


def written(symbol: str, chance: random.Random) -> str:
    """Return a random text for a symbol of the grammar."""
    text = chance.choice(GRAMMAR[symbol])
    while "{" in text:
        before, _, rest = text.partition("{")
        inner, _, after = rest.partition("}")
        text = before + written(inner, chance) + after
    return text


chance = random.Random(0)
text = "\n".join(written("sentence", chance) for _ in range(2000))
letters = sorted(set(text))


def encoded(line: str) -> Tensor:
    return torch.tensor([letters.index(letter) for letter in line])


def windows(codes: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Return windows of the text, and the same windows one character later as targets."""
    return codes[:-1].unfold(0, CONTEXT, stride), codes[1:].unfold(0, CONTEXT, stride)


class Embedding(nn.Module):
    """Embedding of characters and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.letter = nn.Embedding(len(letters), WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)

    def forward(self, codes: Tensor) -> Tensor:
        return self.letter(codes) + self.position(torch.arange(codes.shape[-1], device=codes.device))


class Block(nn.Module):
    """Causal attention, then an MLP for each character."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_network = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def attend(self, x: Tensor) -> Tensor:
        parts = self.mix(x).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.before_attention(x))
        return x + self.network(self.before_network(x))


def model() -> nn.Sequential:
    blocks = [Block() for _ in range(LAYERS)]
    return nn.Sequential(Embedding(), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(letters)))


def next_character_loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


codes = encoded(text)
split = int(0.95 * len(codes))

task = pl.Task(
    model=model,
    data=windows(codes[:split], stride=7),
    loss=next_character_loss,
    optimizer=partial(torch.optim.AdamW, lr=3e-3),
    batch_size=32,
    test=windows(codes[split:], stride=CONTEXT),
    metric="accuracy",
    clip_norm=1.0,
)


@torch.no_grad()
def sampled_line(trained: nn.Module, seed: int = 0) -> str:
    """Sample one line from the model, character by character."""
    generator = torch.Generator().manual_seed(seed)
    line = "\n"
    while len(line) < 2 * CONTEXT and not line.endswith("\n", 1):
        chances = trained(encoded(line[-CONTEXT:])[None])[0, -1].softmax(-1)
        line += letters[int(torch.multinomial(chances, 1, generator=generator))]
    return line.strip()


def main() -> None:
    run = pl.train(task, "all-reduce", pl.Local(workers=4), steps=400)
    print(f"loss before    {run.history[0].loss:.3f}")
    print(f"loss after     {run.history[-1].loss:.3f}")
    print(f"it writes      {sampled_line(run.model)}")


if __name__ == "__main__":
    main()
