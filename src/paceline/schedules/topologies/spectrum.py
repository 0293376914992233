"""The spectral gap: how fast mixing brings the peers to consensus.

The gap is 1 - rho. rho is the second largest singular value of the product of the matrices of one period. In each
period the distance of the peers from their mean shrinks at least by the factor rho, for any values. For symmetric
weights rho = max(|l2|, |ln|). For all named topologies rho is the second largest modulus of an eigenvalue, which is the
asymptotic rate. (A user's matrix that is not normal may converge faster asymptotically. But the modulus does not bound
the first periods, so the singular value is used.)

If all peers are equivalent, a Fourier transform gives the spectrum. Other matrices are solved directly, or with
thousands of peers by Lanczos iteration on their sparse rows. The iteration needs no reorthogonalization. Without
it, copies of eigenvalues appear, but the largest eigenvalue does not change (Paige 1971). Source: Boyd, Ghosh,
Prabhakar, Shah, "Randomized Gossip Algorithms", 2006.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from paceline.errors import ConfigurationError, RunError
from paceline.schedules.topologies.graph import Floats
from paceline.schedules.topologies.rotation import weights_by_distance
from paceline.schedules.topologies.topology import Topology

_DENSE_PEERS = 512
_MOST_ITERATIONS = 2**17
_ZERO_GAP = 1e-13
"""A smaller gap may be a rounding error."""


def spectral_gap(topology: Topology) -> float:
    """Return the spectral gap: 1 if one period averages exactly, 0 if there is never consensus."""
    weights = weights_by_distance(topology)
    if weights is not None:
        rho = _circulant(weights)
    else:
        rho = _dense(topology) if topology.peers <= _DENSE_PEERS else _by_iteration(topology)
    return 0.0 if 1 - rho < _ZERO_GAP else 1 - rho


def steps_to_consensus(gap: float, factor: float = 1e-3, period: int = 1) -> float:
    """Return the steps until the distance from consensus has fallen to `factor` of its value; infinite if gap is 0.

    The result is a whole number of periods, because `gap` is the gap of one period.
    """
    if not 0 <= gap <= 1:
        raise ConfigurationError("gap", "must be between 0 and 1", gap)
    if not 0 < factor < 1:
        raise ConfigurationError("factor", "must be above 0 and below 1", factor)
    if gap == 0:
        return math.inf
    periods = 1 if gap == 1 else math.ceil(math.log(factor) / math.log1p(-gap))
    return period * periods


def _circulant(weights: list[Floats]) -> float:
    """Return rho of circulant matrices.

    They are normal; their eigenvalues are the first column's Fourier transform.
    """
    moduli = np.prod([np.abs(np.fft.fft(step)) for step in weights], axis=0)
    return float(moduli[1:].max(initial=0))


def _dense(topology: Topology) -> float:
    product = topology.matrix(0)
    for step in range(1, topology.period):
        product = topology.matrix(step) @ product
    off_the_mean = product - 1 / topology.peers
    if np.allclose(product, product.T, rtol=0, atol=1e-15):
        return float(np.abs(np.linalg.eigvalsh(off_the_mean)).max())
    return float(np.linalg.norm(off_the_mean, 2))


def _by_iteration(topology: Topology) -> float:
    """Return rho from Lanczos's tridiagonal matrix, doubled in size until the gap is exact to six digits."""
    symmetric = _is_symmetric(topology)
    entries = _lanczos(topology.mix if symmetric else _there_and_back(topology), topology.peers)
    diagonal, beside, before = list[float](), list[float](), math.inf
    while len(diagonal) < _MOST_ITERATIONS:
        more = list(islice(entries, max(64, len(diagonal))))
        diagonal += [entry for entry, _ in more]
        beside += [entry for _, entry in more]
        norm = _norm(diagonal, beside)
        # The square root turns rounding noise of 1e-16 into 1e-8.
        rho = norm if symmetric else math.sqrt(norm)
        if not more or abs(rho - before) <= 1e-6 * (1 - rho) + _ZERO_GAP / 10:
            return rho
        before = rho
    raise RunError(
        f"the spectral gap of {topology!r} is too small to be found in {_MOST_ITERATIONS} iterations"
    )


def _is_symmetric(topology: Topology) -> bool:
    if topology.period > 1:
        return False
    row, column = topology.rows[0], topology.columns[0]
    return np.array_equal(row.senders, column.senders) and np.allclose(row.weights, column.weights, 0, 1e-15)


def _there_and_back(topology: Topology) -> Callable[[Floats], Floats]:
    """Return a function that multiplies a vector by the product and then by its transpose."""

    def apply(values: Floats) -> Floats:
        for mixing in topology.rows:
            values = mixing.mix(values)
        for mixing in reversed(topology.columns):
            values = mixing.mix(values)
        return values

    return apply


def _lanczos(apply: Callable[[Floats], Floats], size: int) -> Iterator[tuple[float, float]]:
    """Yield the tridiagonal matrix's diagonal and off-diagonal entries, in the subspace of vectors with mean 0."""
    before, coupling = np.zeros(size), 0.0
    vector = np.random.default_rng(0).standard_normal(size)
    vector -= vector.mean()
    vector /= np.linalg.norm(vector)
    while True:
        image = apply(vector) - coupling * before
        own = float(vector @ image)
        image -= own * vector
        # The last operation, because a rounding error in the mean would grow from step to step.
        image -= image.mean()
        coupling = float(np.linalg.norm(image))
        yield own, coupling
        if coupling < 1e-12:
            return  # the subspace is exhausted: the matrix has few different eigenvalues
        before, vector = vector, image / coupling


def _norm(diagonal: list[float], beside: list[float]) -> float:
    """Return the largest modulus of an eigenvalue of a tridiagonal matrix, at most 1, by bisection."""
    low, high = 0.0, 1.0
    squares = [0.0, *(entry * entry for entry in beside[:-1])]
    negated = [-entry for entry in diagonal]
    for _ in range(54):  # this number of halvings of 1 gives the precision of a float
        middle = (low + high) / 2
        if _is_below(diagonal, squares, middle) and _is_below(negated, squares, middle):
            high = middle
        else:
            low = middle
    return high


def _is_below(diagonal: list[float], squares: list[float], bound: float) -> bool:
    """Return whether all eigenvalues are below `bound`.

    By Sylvester's law this is so if all pivots of T - bound are negative.
    """
    pivot = -1.0
    for entry, square in zip(diagonal, squares, strict=True):
        pivot = entry - bound - square / pivot
        if pivot >= 0:
            return False
    return True
