"""For each rule of the tensor planner: small functions that use its operation between two split layers.

A function is given `y`, the output of a layer that is split by columns (batch, LENGTH, columns), the whole value `x`
that this layer was given (batch, LENGTH, WIDTH), and a whole buffer of one number for each column. The result is
the input of a layer that is split by rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["CASES", "LENGTH", "REFUSED", "WIDTH", "Case"]

WIDTH, LENGTH = 8, 6
COLUMNS = 14
"""Not divisible by 3, so that one of three ranks has a smaller part."""
HEADS, HEAD = 6, 2

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class Case:
    apply: Callable[[Tensor, Tensor, Tensor], Tensor]
    columns: int = COLUMNS
    rows: int = COLUMNS
    gives_whole: bool = False
    """Whether ranks sum the results of the operation to get the whole value."""


def pointwise(function):
    return [Case(apply=lambda y, x, of: function(y))]


def positive(function):
    """Return numbers for which a root or a logarithm is smooth."""
    return [Case(apply=lambda y, x, of: function(y * y + 1.0))]


def of_two(function):
    """Combine a value with itself, with a number, with a broadcast whole value, and with a value that ranks split."""
    return [
        Case(apply=lambda y, x, of: function(y, y * y + 2.0)),
        Case(apply=lambda y, x, of: function(y, torch.sum(x * x, -1, keepdim=True) + 1.0)),
        Case(apply=lambda y, x, of: function(y, of)),
        Case(apply=lambda y, x, of: function(of, y * y + 2.0)),
    ]


def compared(function):
    """A comparison has no gradient: it chooses between two values that have one."""
    return [
        Case(apply=lambda y, x, of: torch.where(function(y, of), y, 3.0 * y)),
        Case(apply=lambda y, x, of: torch.where(function(y, x.mean(-1, keepdim=True)), y, 3.0 * y)),
    ]


def of_truths(function):
    return [Case(apply=lambda y, x, of: torch.where(function(y > 0.0, of > 0.5), y, 3.0 * y))]


def by_heads(y, heads=HEADS):
    return y.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined_heads(y):
    return y.transpose(1, 2).flatten(2)


def attention(masked, **options):
    """`masked` returns the mask for a whole value."""

    def apply(y, x, of):
        query, key, value = (by_heads(each) for each in y.chunk(3, dim=-1))
        return joined_heads(functional.scaled_dot_product_attention(query, key, value, **masked(x) | options))

    return Case(apply=apply, columns=3 * HEADS * HEAD, rows=HEADS * HEAD)


def attended_by_hand(y, x, of):
    query, key, value = (by_heads(each) for each in y.chunk(3, dim=-1))
    return joined_heads(torch.matmul(torch.matmul(query, key.transpose(-2, -1)).softmax(-1), value))


IN_HEADS = {"columns": HEADS * HEAD, "rows": HEADS * HEAD}

DIMENSIONS = {
    "reshape": [
        Case(
            apply=lambda y, x, of: (
                y.view(y.shape[0], LENGTH, HEADS, HEAD).tanh().view(-1, LENGTH, HEADS * HEAD)
            ),
            **IN_HEADS,
        ),
        Case(apply=lambda y, x, of: y.view(-1, COLUMNS).tanh().view(-1, LENGTH, COLUMNS)),
        Case(
            apply=lambda y, x, of: (
                y.reshape(-1, LENGTH, HEADS, HEAD)
                .transpose(1, 2)
                .transpose(1, 2)
                .reshape(-1, LENGTH, HEADS * HEAD)
            ),
            **IN_HEADS,
        ),
        Case(apply=lambda y, x, of: y.reshape(-1, 2, 3, COLUMNS).sum(1)),
        Case(
            apply=lambda y, x, of: y.reshape(-1, LENGTH, 2, COLUMNS).permute(2, 0, 1, 3)[1],
            columns=2 * COLUMNS,
        ),
    ],
    "_unsafe_view": [
        Case(apply=lambda y, x, of: aten._unsafe_view(y, [y.shape[0], LENGTH, COLUMNS, 1]).squeeze(3))
    ],
    "unflatten": [
        Case(apply=lambda y, x, of: y.unflatten(-1, (HEADS, HEAD)).tanh().flatten(-2), **IN_HEADS),
        Case(apply=lambda y, x, of: y.unflatten(1, (2, 3)).mean(2)),
    ],
    "flatten": [
        Case(apply=lambda y, x, of: y.unflatten(-1, (-1, HEAD)).flatten(2), **IN_HEADS),
        Case(apply=lambda y, x, of: y.flatten(0, 1).tanh().unflatten(0, (-1, LENGTH))),
    ],
    "transpose": [Case(apply=lambda y, x, of: (y.transpose(1, 2) * 2.0).transpose(-1, -2))],
    "permute": [Case(apply=lambda y, x, of: y.permute(2, 0, 1).tanh().permute(1, 2, 0))],
    "t": [Case(apply=lambda y, x, of: y.sum(1).t().tanh().t())],
    "numpy_T": [Case(apply=lambda y, x, of: y.sum(1).T.tanh().T)],
    "swapaxes": [Case(apply=lambda y, x, of: aten.swapaxes(aten.swapaxes(y, 1, 2).tanh(), 2, 1))],
    "split": [
        Case(apply=lambda y, x, of: torch.mul(*y.split(COLUMNS, dim=-1)), columns=2 * COLUMNS),
        Case(apply=lambda y, x, of: torch.sub(*y.split(3, dim=1))),
    ],
    "split_with_sizes": [
        Case(
            apply=lambda y, x, of: torch.mul(*aten.split_with_sizes(y, [COLUMNS, COLUMNS], -1)),
            columns=2 * COLUMNS,
        ),
        Case(apply=lambda y, x, of: aten.split_with_sizes(y, [2, 4], 1)[1]),
    ],
    "chunk": [
        Case(
            apply=lambda y, x, of: sum(n * each for n, each in enumerate(y.chunk(3, dim=-1), 1)),
            columns=3 * COLUMNS,
        ),
        Case(apply=lambda y, x, of: torch.sub(*y.chunk(2, dim=1))),
    ],
    "cat": [Case(apply=lambda y, x, of: torch.cat([y, y.tanh()], dim=1))],
    "stack": [
        Case(apply=lambda y, x, of: torch.stack([y, y.tanh()], dim=1).sum(1)),
        Case(apply=lambda y, x, of: torch.stack([y, y.tanh()], dim=-1).select(-1, 1)),
    ],
    "expand": [
        Case(
            apply=lambda y, x, of: (y.unsqueeze(1).expand(-1, 3, -1, -1) * x.mean(-1)[:, :3, None, None]).sum(
                1
            )
        )
    ],
    "select": [
        Case(apply=lambda y, x, of: y.select(1, 2)),
        Case(
            apply=lambda y, x, of: (lambda both: both.select(2, 1) * both.select(2, 0))(
                y.unflatten(-1, (2, COLUMNS))
            ),
            columns=2 * COLUMNS,
        ),
    ],
    "unbind": [
        Case(apply=lambda y, x, of: y.unbind(1)[3]),
        Case(apply=lambda y, x, of: torch.sub(*y.unflatten(-1, (2, COLUMNS)).unbind(2)), columns=2 * COLUMNS),
    ],
    "slice": [
        Case(apply=lambda y, x, of: y[:, 1:4]),
        Case(apply=lambda y, x, of: y[..., :COLUMNS] * y[..., COLUMNS:].tanh(), columns=2 * COLUMNS),
        Case(apply=lambda y, x, of: y[..., -COLUMNS:], columns=3 * COLUMNS),
    ],
    "glu": [
        Case(apply=lambda y, x, of: functional.glu(y, dim=-1), columns=2 * COLUMNS),
        Case(apply=lambda y, x, of: functional.glu(y, dim=1)),
    ],
    "unsqueeze": [Case(apply=lambda y, x, of: y.unsqueeze(2).tanh().unsqueeze(-1).squeeze(-1).squeeze(2))],
    "squeeze": [
        Case(apply=lambda y, x, of: y.mean(1, keepdim=True).squeeze(1)),
        Case(apply=lambda y, x, of: y.unsqueeze(0).unsqueeze(-1).squeeze((0, -1))),
    ],
}

POINTWISE = {
    **{
        name: pointwise(getattr(functional, name)) for name in ("relu", "gelu", "silu", "elu", "selu", "celu")
    },
    **{
        name: pointwise(getattr(functional, name))
        for name in ("leaky_relu", "hardtanh", "hardswish", "relu6", "mish")
    },
    **{name: pointwise(getattr(functional, name)) for name in ("hardsigmoid", "softplus")},
    **{
        name: pointwise(getattr(torch, name))
        for name in ("tanh", "sigmoid", "exp", "neg", "abs", "square", "erf")
    },
    **{name: pointwise(getattr(torch, name)) for name in ("sin", "cos")},
    **{name: positive(getattr(torch, name)) for name in ("log", "sqrt", "rsqrt", "reciprocal")},
    "log_sigmoid": pointwise(functional.logsigmoid),
    "threshold": pointwise(lambda y: functional.threshold(y, 0.1, -0.5)),
    "pow": [*pointwise(lambda y: y**3), *positive(lambda y: y**0.5), *positive(lambda y: torch.pow(2.0, y))],
    "clamp": pointwise(lambda y: y.clamp(-0.3, 0.4)),
    "clamp_min": pointwise(lambda y: torch.clamp_min(y, 0.1)),
    "clamp_max": pointwise(lambda y: torch.clamp_max(y, 0.1)),
    **{
        name: of_two(getattr(torch, name))
        for name in ("add", "sub", "rsub", "mul", "div", "maximum", "minimum")
    },
    "where": [
        Case(apply=lambda y, x, of: torch.where(y > 0.0, y, of)),
        Case(apply=lambda y, x, of: torch.where(of > 0.5, y, x.sum(-1, keepdim=True))),
    ],
    "masked_fill": [
        Case(apply=lambda y, x, of: y.masked_fill(of > 0.5, 0.25)),
        Case(apply=lambda y, x, of: y.masked_fill(x.sum(-1, keepdim=True) > 0.0, 0.25)),
    ],
    **{name: compared(getattr(torch, name)) for name in ("lt", "le", "gt", "ge")},
    **{name: of_truths(getattr(torch, name)) for name in ("eq", "ne", "logical_and")},
    "logical_not": pointwise(lambda y: torch.where(torch.logical_not(y > 0.1), y, 3.0 * y)),
    "to": pointwise(lambda y: (y > 0.1).to(torch.float64) * y),
    "_to_copy": pointwise(lambda y: aten._to_copy(y > 0.1, dtype=torch.float64) * y),
    "type_as": pointwise(lambda y: (y > 0.1).type_as(y) * y),
}

UNCHANGED = {
    "contiguous": pointwise(lambda y: y.transpose(0, 1).contiguous().transpose(0, 1)),
    "clone": pointwise(torch.clone),
    "detach": pointwise(lambda y: y * y.detach()),
    "alias": pointwise(aten.alias),
    "lift_fresh_copy": pointwise(aten.lift_fresh_copy),
}

OTHERS = {
    "softmax": [
        Case(apply=lambda y, x, of: y.softmax(dim=1)),
        Case(apply=lambda y, x, of: by_heads(y).softmax(-1).transpose(1, 2).flatten(2), **IN_HEADS),
    ],
    "_softmax": [Case(apply=lambda y, x, of: aten._softmax(y, 1, False))],
    "matmul": [
        Case(apply=attended_by_hand, columns=3 * HEADS * HEAD, rows=HEADS * HEAD),
        Case(apply=lambda y, x, of: torch.matmul(y.transpose(1, 2), x[..., :LENGTH]).transpose(1, 2)),
        Case(apply=lambda y, x, of: torch.matmul(x.transpose(1, 2), y)),
        Case(
            apply=lambda y, x, of: torch.matmul(by_heads(y), x[:, None, :2, :5]).transpose(1, 2)[..., 0],
            columns=HEADS * HEAD,
            rows=HEADS,
        ),
        Case(apply=lambda y, x, of: torch.matmul(y, y.tanh().transpose(1, 2)), rows=LENGTH, gives_whole=True),
    ],
    "bmm": [
        Case(apply=lambda y, x, of: torch.bmm(y.transpose(1, 2), x[..., :LENGTH]).transpose(1, 2)),
        Case(apply=lambda y, x, of: torch.bmm(x.transpose(1, 2), y)),
        Case(apply=lambda y, x, of: torch.bmm(y, y.tanh().transpose(1, 2)), rows=LENGTH, gives_whole=True),
    ],
    "mm": [
        Case(apply=lambda y, x, of: torch.mm(x[:, 0].t(), y[:, 0])),
        Case(apply=lambda y, x, of: torch.mm(y[:, 0].t(), x[:, 0]).t()),
        Case(apply=lambda y, x, of: torch.mm(y[:, 0], y[:, 1].t()) @ x[:, 0], rows=WIDTH, gives_whole=True),
    ],
    "layer_norm": [
        Case(apply=lambda y, x, of: functional.layer_norm(y.transpose(1, 2), (LENGTH,)).transpose(1, 2)),
        Case(
            apply=lambda y, x, of: functional.layer_norm(
                y.transpose(1, 2), (LENGTH,), torch.arange(1.0, 1.0 + LENGTH, dtype=y.dtype)
            ).transpose(1, 2)
        ),
        Case(
            apply=lambda y, x, of: functional.layer_norm(y.unflatten(-1, (HEADS, HEAD)), (HEAD,)).flatten(2),
            **IN_HEADS,
        ),
    ],
    "rms_norm": [
        Case(apply=lambda y, x, of: functional.rms_norm(y.transpose(1, 2), (LENGTH,)).transpose(1, 2)),
        Case(
            apply=lambda y, x, of: functional.rms_norm(y.unflatten(-1, (HEADS, HEAD)), (HEAD,)).flatten(2),
            **IN_HEADS,
        ),
    ],
    **{
        name: [
            Case(apply=lambda y, x, of, reduce=reduce: reduce(y, 1)),
            Case(apply=lambda y, x, of, reduce=reduce: reduce(y, (1,), keepdim=True)),
            Case(apply=lambda y, x, of, reduce=reduce: reduce(y.unflatten(1, (2, 3)), (1, -2))),
            Case(
                apply=lambda y, x, of, reduce=reduce: reduce(by_heads(y), -1).transpose(1, 2),
                columns=HEADS * HEAD,
                rows=HEADS,
            ),
        ]
        for name, reduce in {"mean": torch.mean, "sum": torch.sum, "var": torch.var}.items()
    },
    "dropout": [
        Case(apply=lambda y, x, of: functional.dropout(y, 0.4)),
        Case(apply=lambda y, x, of: joined_heads(functional.dropout(by_heads(y), 0.4)), **IN_HEADS),
        Case(apply=lambda y, x, of: functional.dropout(y, 0.0)),
    ],
    "scaled_dot_product_attention": [
        attention(lambda x: {}),
        attention(lambda x: {}, is_causal=True),
        attention(lambda x: {}, dropout_p=0.3, scale=0.7),
        attention(lambda x: {"attn_mask": x[:, None, :, :LENGTH]}),
        attention(lambda x: {"attn_mask": x[:, None, :, :LENGTH] > 0.0}, dropout_p=0.3),
    ],
}

CASES = {**DIMENSIONS, **POINTWISE, **UNCHANGED, **OTHERS}
"""Functions by the names of their rules, without loss rules."""

REFUSED = {
    "softmax": Case(apply=lambda y, x, of: y.softmax(dim=-1)),
    "layer_norm": Case(apply=lambda y, x, of: functional.layer_norm(y, (COLUMNS,))),
    "sum": Case(apply=lambda y, x, of: y.sum(-1, keepdim=True) * y),
    "split_with_sizes": Case(apply=lambda y, x, of: y.split([4, 10], dim=-1)[1], rows=10),
    "slice": Case(apply=lambda y, x, of: y[..., 1:9], rows=8),
    "cat": Case(apply=lambda y, x, of: torch.cat([y, y], dim=-1), rows=2 * COLUMNS),
    "squeeze": Case(apply=lambda y, x, of: y.squeeze()),
    "matmul": Case(apply=lambda y, x, of: torch.matmul(y, of), rows=LENGTH),
    "add": Case(apply=lambda y, x, of: y + y.transpose(1, 2), columns=LENGTH, rows=LENGTH),
    "cumsum": Case(apply=lambda y, x, of: y.cumsum(1)),
}
"""Functions that cannot be computed on parts of the columns, by the name of the operation."""
