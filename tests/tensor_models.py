"""Small models of the kinds that are split among ranks: several forms of attention, gates, a head alone."""

import torch
from segmented_models import token_loss
from tasks import a_task, numbers, sgd
from torch import nn

import paceline as pl

__all__ = ["MODELS", "Gated", "Separate", "encoder_task", "language_task", "model_task"]

WIDTH, HEADS = 8, 4


class Separate(nn.Module):
    """Separate layers for queries, keys and values, and attention written by hand, with a mask and dropout."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).tril())

    def forward(self, x):
        normed = self.norm(x)
        query, key, value = (
            layer(normed).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
        weights = scores.masked_fill(~self.mask, float("-inf")).softmax(dim=-1)
        mixed = (self.dropout(weights) @ value).transpose(1, 2).contiguous().flatten(2)
        return x + self.out(mixed)


class Interleaved(nn.Module):
    """One projection, viewed by heads first: each head has its query, key and value one after the other."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        query, key, value = self.into(x).view(batch, length, HEADS, -1).permute(0, 2, 1, 3).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.2)
        return x + self.out(mixed.permute(0, 2, 1, 3).reshape(batch, length, WIDTH))


class InThree(nn.Module):
    """One projection, viewed as three tensors of heads."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.into(x).reshape(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(-2))


class Gated(nn.Module):
    """Separate layers for a gate and its values, as in language models."""

    def __init__(self, dropout=0.2):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 12, bias=False), nn.Linear(WIDTH, 12, bias=False)
        self.down = nn.Linear(12, WIDTH, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        normed = self.norm(x)
        return x + self.down(self.dropout(nn.functional.silu(self.gate(normed)) * self.up(normed)))


class Fused(nn.Module):
    """Gate and values from one layer."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(12, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.glu(self.up(x), dim=-1))


class Parallel(nn.Module):
    """Attention and MLP in parallel, with the same normalised input."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Separate()
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x):
        normed = self.norm(x)
        return self.attention(normed) + self.down(torch.relu(self.up(normed)))


class Sliced(nn.Module):
    """Parts of a fused projection, selected by position."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(12, WIDTH)

    def forward(self, x):
        both = self.up(x)
        return x + self.down(both[..., :12] * torch.sigmoid(both[..., 12:]))


class Untransposed(nn.Module):
    """A linear layer with its weight as inputs x outputs, like `Conv1D` of Hugging Face's GPT-2."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.ones(outputs))
        nn.init.normal_(self.weight, std=0.3)

    def forward(self, x):
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], self.weight.size(1))


class GPT2Like(nn.Module):
    """Queries, keys and values from one untransposed layer, and an MLP of two such layers."""

    def __init__(self):
        super().__init__()
        self.into, self.out = Untransposed(WIDTH, 3 * WIDTH), Untransposed(WIDTH, WIDTH)
        self.up, self.down = Untransposed(WIDTH, 16), Untransposed(16, WIDTH)

    def forward(self, x):
        heads = [each.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for each in self.into(x).split(WIDTH, 2)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(x)))


MODELS = {
    "separate": Separate,
    "separate-dropout": lambda: Separate(0.2),
    "interleaved": Interleaved,
    "in-three": InThree,
    "gated": Gated,
    "fused": Fused,
    "parallel": Parallel,
    "sliced": Sliced,
    "untransposed": GPT2Like,
}


def model_task(kind, length=5, **changes):
    """Two of these blocks in sequence."""

    def model():
        return nn.Sequential(
            MODELS[kind](), MODELS[kind](), nn.Flatten(), nn.Linear(length * WIDTH, 2)
        ).double()

    return a_task(**{"model": model, "data": (numbers(24, length, WIDTH), numbers(24, 2, seed=1))} | changes)


def encoder_task(*, dropout=0.0, norm_first=False, length=5, batch_first=True, **changes):
    def model():
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 16, dropout=dropout, batch_first=batch_first, norm_first=norm_first
        )
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()

    return a_task(
        **{"model": model, "data": (numbers(24, length, WIDTH), numbers(24, length, WIDTH, seed=1))} | changes
    )


class Language(nn.Module):
    """An embedding, a block, and a head that may be the embedding's own matrix."""

    def __init__(self, *, tied, dropout=0.2):
        super().__init__()
        self.tokens = nn.Embedding(12, WIDTH, padding_idx=3)
        self.block = Gated(dropout)
        self.head = nn.Linear(WIDTH, 12, bias=not tied)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens):
        return self.head(self.block(self.tokens(tokens)))


def language_task(*, tied=False, dropout=0.2, **changes):
    tokens = torch.randint(0, 12, (24, 7), generator=torch.Generator().manual_seed(3))
    given = {
        "model": lambda: Language(tied=tied, dropout=dropout).double(),
        "data": (tokens[:, :-1], tokens[:, 1:]),
        "loss": token_loss,
        "optimizer": sgd,
        "batch_size": 8,
    }
    return pl.Task(**(given | changes))
