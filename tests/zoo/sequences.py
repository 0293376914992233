"""Models for sequences and graphs, written from their papers, with few channels."""

import torch
from torch import nn
from torch.nn import functional


class CausalBlock(nn.Module):
    """Fused causal attention and a perceptron, each with a residual connection."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.size()
        query, key, value = self.attention(self.norms[0](x)).split(width, dim=2)
        query, key, value = (
            each.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for each in (query, key, value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.body(self.norms[1](x))


class NanoGPT(nn.Module):
    """A language model with a tied head. It returns `(logits, loss)`."""

    def __init__(self, vocabulary=16, length=6, width=8, heads=2, blocks=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(CausalBlock(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets=None):
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = None
        if targets is not None:
            loss = functional.cross_entropy(
                logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
            )
        return logits, loss


class LSTMLanguageModel(nn.Module):
    """An embedding, two layers of LSTM, and a head. https://arxiv.org/abs/1409.2329"""

    def __init__(self, vocabulary=16, width=8):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        hidden, _ = self.recurrent(self.tokens(tokens))
        return self.head(hidden)


class MessagePassing(nn.Module):
    """Nodes sum the messages of their neighbours, which are given by an edge list. https://arxiv.org/abs/1704.01212"""

    def __init__(self, features=4, width=8, rounds=3, classes=2):
        super().__init__()
        self.encode = nn.Linear(features, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))
        self.updates = nn.ModuleList(nn.GRUCell(width, width) for _ in range(rounds))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, nodes, edges):
        graphs, count, _ = nodes.shape
        x = self.encode(nodes)
        source, target = edges[..., 0], edges[..., 1]
        for message, update in zip(self.messages, self.updates, strict=True):
            width = x.shape[-1]
            ends = [x.gather(1, each.unsqueeze(-1).expand(-1, -1, width)) for each in (source, target)]
            sent = functional.relu(message(torch.cat(ends, dim=-1)))
            got = torch.zeros_like(x).scatter_add(1, target.unsqueeze(-1).expand(-1, -1, width), sent)
            x = update(got.view(graphs * count, width), x.reshape(graphs * count, width)).view_as(x)
        return self.head(x.mean(dim=1))


class Adapter(nn.Module):
    """A frozen linear layer, plus a product of two thin matrices. https://arxiv.org/abs/2106.09685"""

    def __init__(self, frozen, rank=2):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Linear(frozen.in_features, rank, bias=False)
        self.b = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x):
        return self.frozen(x) + 0.5 * self.b(self.a(x))


class Adapted(nn.Module):
    """A frozen language model with adapters around the attention's projections."""

    def __init__(self):
        super().__init__()
        self.base = NanoGPT().requires_grad_(False)
        for block in self.base.blocks:
            block.attention, block.projection = Adapter(block.attention), Adapter(block.projection)

    def forward(self, tokens, targets):
        return self.base(tokens, targets)[1:]


class RelativeBlock(nn.Module):
    """Attention over a memory and the sequence, with relative positions. https://arxiv.org/abs/1901.02860"""

    def __init__(self, width, heads, span):
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.pairs = nn.Linear(width, 2 * width, bias=False)
        self.bias = nn.Parameter(torch.zeros(heads, 1, span))
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, memory):
        batch, length, width = x.shape
        seen = torch.cat([memory, x], dim=1)
        key, value = self.pairs(seen).chunk(2, dim=-1)
        query = self.query(x)
        query, key, value = (e.unflatten(-1, (self.heads, -1)).transpose(1, 2) for e in (query, key, value))
        scores = torch.einsum("bhid,bhjd->bhij", query, key) + self.bias[..., : seen.shape[1]]
        mixed = torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), value)
        x = self.norm(x + self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.down(functional.relu(self.up(x)))


class TransformerXL(nn.Module):
    def __init__(self, vocabulary=16, width=8, heads=2, blocks=2, memory=4, length=6):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(RelativeBlock(width, heads, memory + length) for _ in range(blocks))
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("memory", torch.zeros(memory, width))

    def forward(self, tokens):
        x = self.tokens(tokens)
        memory = self.memory.unsqueeze(0).expand(x.shape[0], -1, -1)
        for block in self.blocks:
            x = block(x, memory)
        return self.head(x)


class Seq2Seq(nn.Module):
    """torch's own nn.Transformer, with a causal mask for the decoder and a padding mask for the encoder."""

    def __init__(self, vocabulary=16, width=8):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.body = nn.Transformer(width, 2, 2, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source, target):
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float64)
        padding = source == 0
        made = self.body(
            self.tokens(source), self.tokens(target), tgt_mask=causal, src_key_padding_mask=padding
        )
        return self.head(made)
