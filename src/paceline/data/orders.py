"""The order of samples in an epoch. It depends on the seed and the epoch only, so every rank computes the same order.

A large order is never in memory as a whole. Each sample number is computed from its position by a Feistel network.
A result beyond the last number is encrypted again, until the result is valid (cycle walking).
Source: Black, Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

LARGE = 2**24
"""With more samples than this, an order is computed number by number. As an array, the order of one epoch would
take 128 MB."""
_KEPT_ORDERS = 16
_KEPT_BYTES = 256 * 2**20
_ROUNDS = 6


class Order(Protocol):
    """The sample numbers of each epoch."""

    @property
    def length(self) -> int:
        """Samples in an epoch."""
        ...

    def numbers(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Return the numbers at positions `start` to `stop` - 1. There are fewer if the epoch ends earlier."""
        ...


class Sequential:
    """The samples in the order of their numbers."""

    def __init__(self, length: int) -> None:
        self.length = length

    def numbers(self, epoch: int, start: int, stop: int) -> np.ndarray:
        return np.arange(start, min(stop, self.length))


def shuffled(length: int, seed: int) -> Order:
    """Return an order with every sample once an epoch, reshuffled in each epoch."""
    return Shuffled(length, seed) if length <= LARGE else Computed(length, seed)


class Shuffled:
    """A permutation stored as an array."""

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self._seed = seed
        self._orders: dict[int, np.ndarray] = {}
        # Asynchronous workers may be in different epochs, so several orders are cached.
        self._kept = min(_KEPT_ORDERS, max(2, _KEPT_BYTES // (8 * max(1, length))))

    def numbers(self, epoch: int, start: int, stop: int) -> np.ndarray:
        order = self._orders.get(epoch)
        if order is None:
            order = np.random.default_rng([self._seed, epoch]).permutation(self.length)
            if len(self._orders) >= self._kept:
                self._orders.pop(min(self._orders))
            self._orders[epoch] = order
        return order[start:stop]


class Computed:
    """A permutation of any length that is computed on demand and not stored."""

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self._seed = seed
        # Width of the two halves: the smallest that can hold every number. The range is less than four times the
        # length.
        self._half_bits = np.uint64(max(1, math.ceil((length - 1).bit_length() / 2)))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)

    def numbers(self, epoch: int, start: int, stop: int) -> np.ndarray:
        keys = np.random.SeedSequence([self._seed, epoch]).generate_state(_ROUNDS, np.uint64)
        found = self._encrypted(np.arange(start, min(stop, self.length), dtype=np.uint64), keys)
        while (outside := np.flatnonzero(found >= self.length)).size:
            found[outside] = self._encrypted(found[outside], keys)
        return found.astype(np.int64)

    def _encrypted(self, numbers: np.ndarray, keys: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half_bits, numbers & self._mask
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & self._mask)
        encrypted: np.ndarray = left << self._half_bits | right
        return encrypted


def _mixed(words: np.ndarray) -> np.ndarray:
    """Mix the bits: each output bit depends on all input bits (finaliser of MurmurHash3). Overflow is intended."""
    words = (words ^ words >> np.uint64(33)) * np.uint64(0xFF51AFD7ED558CCD)
    words = (words ^ words >> np.uint64(33)) * np.uint64(0xC4CEB9FE1A85EC53)
    mixed: np.ndarray = words ^ words >> np.uint64(33)
    return mixed


class Weighted:
    """Sampling with replacement. The probability of a sample is proportional to its weight."""

    def __init__(self, weights: np.ndarray, length: int, seed: int) -> None:
        self.length = length
        self._seed = seed
        self._upto = np.cumsum(weights, dtype=np.float64)
        self._last = int(np.flatnonzero(weights)[-1])

    def numbers(self, epoch: int, start: int, stop: int) -> np.ndarray:
        # Each position uses one number of the random stream, so any position can be drawn without the positions
        # before it.
        stream = np.random.PCG64(np.random.SeedSequence([self._seed, epoch])).advance(start)
        count = max(0, min(stop, self.length) - start)
        chance = np.random.Generator(stream).random(count) * self._upto[-1]
        # Rounding may select the upper end of the range, but the last weights may be zero.
        drawn: np.ndarray = np.searchsorted(self._upto, chance, side="right")
        return np.where(drawn > self._last, self._last, drawn)
