"""Small models of the kinds that are cut into segments, and their tasks, in double precision."""

import torch
from tasks import a_task, numbers, sgd
from torch import nn

import paceline as pl

__all__ = ["KINDS", "gpt_task", "task_of"]


class Residual(nn.Module):
    """Two convolutions and a residual connection around them."""

    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


class SmallResNet(nn.Module):
    """A stem, blocks in a list, and a head, as torchvision's models have them."""

    def __init__(self, blocks=3):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.blocks = nn.ModuleList(Residual(4) for _ in range(blocks))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))


class Block(nn.Module):
    """A layer of a transformer: causal attention and an MLP, each with a residual connection."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_body = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.into(self.before_attention(x)).split(width, dim=2)
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.before_body(x)))))


class SmallGPT(nn.Module):
    """As nanoGPT is written: an assertion on the length, a loop over blocks, and a head tied to the embedding."""

    def __init__(self, vocabulary=11, length=6, width=8, blocks=3, dropout=0.0, heads=2):
        super().__init__()
        self.length = length
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        _, length = tokens.size()
        assert length <= self.length, "too long"
        x = self.tokens(tokens) + self.places(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    """torch's own transformer, with a mask that every layer uses."""

    def __init__(self, dropout=0.0):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=x.dtype), diagonal=1)
        return self.head(self.encoder(x, mask=mask, is_causal=True)).mean(dim=1)


def perceptron():
    return nn.Sequential(
        nn.Linear(4, 9),
        nn.Tanh(),
        nn.Sequential(nn.Linear(9, 7), nn.GELU()),
        nn.Linear(7, 5),
        nn.Linear(5, 2),
    )


def token_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def _classes(count):
    return torch.arange(count) % 3


def gpt_task(**changes):
    tokens = torch.randint(0, 11, (24, 7), generator=torch.Generator().manual_seed(3))
    sizes = {name: changes.pop(name) for name in ("dropout", "blocks", "heads") if name in changes}
    given = {
        "model": lambda: SmallGPT(**sizes).double(),
        "data": (tokens[:, :-1], tokens[:, 1:]),
        "loss": token_loss,
        "optimizer": sgd,
        "batch_size": 8,
    }
    return pl.Task(**(given | changes))


def _resnet_task(**changes):
    images = numbers(24, 2, 6, 6, seed=4)
    return a_task(
        **{
            "model": lambda: SmallResNet().double(),
            "data": (images, _classes(24)),
            "loss": nn.functional.cross_entropy,
        }
        | changes
    )


def _encoder_task(**changes):
    return a_task(
        **{"model": lambda: Encoder().double(), "data": (numbers(24, 5, 8), numbers(24, 2, seed=1))} | changes
    )


def _perceptron_task(**changes):
    return a_task(**{"model": lambda: perceptron().double()} | changes)


KINDS = {"perceptron": _perceptron_task, "resnet": _resnet_task, "gpt": gpt_task, "encoder": _encoder_task}


def task_of(kind, **changes):
    return KINDS[kind](**changes)
