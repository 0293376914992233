"""PowerSGD: each matrix is replaced by two thin factors, found by one step of the power method.

A gradient of shape (n, …) is an n x m matrix M, plus the error of the last step. P = M Q, orthonormalized; then
Q = M^T P, which starts the next step. In an all-reduce the ranks sum P, then Q, so that they use a common basis.
Vectors are sent as they are, and so are matrices with no more numbers than their factors.

Cost: r (n + m) numbers for a matrix of n m.
Source: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
NeurIPS 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from paceline.codecs.codec import GradientCodec, check_floating
from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor

_SEED = 714  # of the first factors, which are the same on every rank


class Place(NamedTuple):
    """A parameter in a flat tensor."""

    start: int
    rows: int
    columns: int
    is_compressed: bool

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns


class Factors(NamedTuple):
    """The factors of all compressed matrices, and the other parameters, each in one flat tensor."""

    left: Tensor
    right: Tensor
    plain: Tensor


@dataclass(frozen=True, slots=True)
class PowerSGD(GradientCodec):
    """Sends two factors of this rank for each matrix. The error is added to the next gradient."""

    rank: int

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise ConfigurationError("rank", "must be a whole number of at least 1", self.rank, "try 2")

    def __str__(self) -> str:
        return f"powersgd-{self.rank}"

    def check(self, shapes: Sequence[Sequence[int]]) -> None:
        """Refuse a rank at which the factors of every matrix have as many numbers as the matrix, or more."""
        most = max((_highest_rank(shape) for shape in shapes if len(shape) > 1), default=self.rank)
        if self.rank > most:
            bound = f"must be at most {most}: no matrix of this model would be sent in fewer numbers"
            raise ConfigurationError("rank", bound, self.rank, "choose a lower rank, or another codec")

    def places(self, shapes: Sequence[Sequence[int]]) -> Iterator[Place]:
        start = 0
        for shape in shapes:
            rows = shape[0] if shape else 1
            columns = math.prod(shape[1:])
            yield Place(start, rows, columns, self.rank <= _highest_rank(shape))
            start += rows * columns

    def memory_length(self, shapes: Sequence[Sequence[int]]) -> int:
        return sum(self.rank * place.columns for place in self.places(shapes) if place.is_compressed)

    def lengths(self, shapes: Sequence[Sequence[int]]) -> tuple[int, int, int]:
        """Return the number of elements of the left factors, of the right factors, and of the rest."""
        places = list(self.places(shapes))
        left = sum(self.rank * place.rows for place in places if place.is_compressed)
        plain = sum(place.stop - place.start for place in places if not place.is_compressed)
        return left, self.memory_length(shapes), plain

    def encode(
        self, tensor: Tensor, shapes: Sequence[Sequence[int]] = (), memory: Tensor | None = None
    ) -> Tensor:
        import torch

        check_floating(tensor)
        assert memory is not None, "PowerSGD starts with its last factors"
        if tensor.is_meta:
            nbytes = sum(self.lengths(shapes)) * tensor.itemsize
            return torch.empty(nbytes, dtype=torch.uint8, device="meta")
        self.warm_up(memory)
        left = self.project(tensor, shapes, memory)
        self.orthonormalize(left, shapes)
        self.project_back(tensor, shapes, left, memory)
        plain = self.plain_of(tensor, shapes)
        return torch.cat([left, memory, plain]).view(torch.uint8)

    def decode(self, codes: Tensor, into: Tensor, shapes: Sequence[Sequence[int]] = ()) -> None:
        if codes.is_meta:
            return
        numbers = codes.clone().view(into.dtype)
        lefts, rights, _ = self.lengths(shapes)
        left, right, plain = numbers[:lefts], numbers[lefts : lefts + rights], numbers[lefts + rights :]
        self.multiply(Factors(left, right, plain), into, shapes)

    # The steps of the power method, on all matrices

    def warm_up(self, right: Tensor) -> None:
        """Fill the factors of the first step. They are zero until then."""
        import torch

        if right.numel() and not right.any():
            generator = torch.Generator().manual_seed(_SEED)
            right.copy_(torch.randn(right.numel(), generator=generator, dtype=right.dtype))

    def project(self, tensor: Tensor, shapes: Sequence[Sequence[int]], right: Tensor) -> Tensor:
        """Return M Q of every matrix."""
        import torch

        products = [
            matrix @ factor
            for matrix, factor in zip(
                self._matrices(tensor, shapes), self._rights(right, shapes), strict=True
            )
        ]
        return torch.cat([product.view(-1) for product in products]) if products else tensor[:0].clone()

    def orthonormalize(self, left: Tensor, shapes: Sequence[Sequence[int]]) -> None:
        import torch

        for factor in self._lefts(left, shapes):
            factor.copy_(torch.linalg.qr(factor).Q)

    def project_back(
        self, tensor: Tensor, shapes: Sequence[Sequence[int]], left: Tensor, right: Tensor
    ) -> None:
        """Write M^T P of every matrix into `right`."""
        import torch

        lefts, rights = self._lefts(left, shapes), self._rights(right, shapes)
        for matrix, one, other in zip(self._matrices(tensor, shapes), lefts, rights, strict=True):
            torch.mm(matrix.T, one, out=other)

    def plain_of(self, tensor: Tensor, shapes: Sequence[Sequence[int]]) -> Tensor:
        """Return the parameters that are not compressed."""
        import torch

        parts = [tensor[place.start : place.stop] for place in self.places(shapes) if not place.is_compressed]
        return torch.cat(parts) if parts else tensor[:0].clone()

    def multiply(self, factors: Factors, into: Tensor, shapes: Sequence[Sequence[int]]) -> None:
        """Write P Q^T of every matrix, and the other parameters, into a flat tensor."""
        import torch

        lefts, rights = self._lefts(factors.left, shapes), self._rights(factors.right, shapes)
        for matrix, one, other in zip(self._matrices(into, shapes), lefts, rights, strict=True):
            torch.mm(one, other.T, out=matrix)
        at = 0
        for place in self.places(shapes):
            if not place.is_compressed:
                length = place.stop - place.start
                into[place.start : place.stop] = factors.plain[at : at + length]
                at += length

    def _matrices(self, flat: Tensor, shapes: Sequence[Sequence[int]]) -> Iterator[Tensor]:
        for place in self.places(shapes):
            if place.is_compressed:
                yield flat[place.start : place.stop].view(place.rows, place.columns)

    def _lefts(self, left: Tensor, shapes: Sequence[Sequence[int]]) -> Iterator[Tensor]:
        return self._factors(left, [place.rows for place in self.places(shapes) if place.is_compressed])

    def _rights(self, right: Tensor, shapes: Sequence[Sequence[int]]) -> Iterator[Tensor]:
        return self._factors(right, [place.columns for place in self.places(shapes) if place.is_compressed])

    def _factors(self, flat: Tensor, heights: Sequence[int]) -> Iterator[Tensor]:
        at = 0
        for height in heights:
            yield flat[at : at + height * self.rank].view(height, self.rank)
            at += height * self.rank


def _highest_rank(shape: Sequence[int]) -> int:
    """Return the highest rank at which the factors of a parameter have fewer elements than itself. 0 for vectors."""
    if len(shape) < 2:
        return 0
    rows, columns = shape[0], math.prod(shape[1:])
    return max(0, (rows * columns - 1) // (rows + columns)) if rows * columns else 0
