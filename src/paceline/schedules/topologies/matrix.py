"""A weight matrix supplied by the user: an array, or a file (.npy from numpy, .csv with one line per row).

Row i defines the new value of peer i: entry (i, j) is the weight of peer j's value. The matrix must be doubly
stochastic, and is used unchanged.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigurationError
from paceline.schedules.topologies.graph import Floats
from paceline.schedules.topologies.mixing import Mixing, mixing_of_entries
from paceline.schedules.topologies.weights import check_sums

MATRIX_FILES = (".npy", ".csv")

_FORM = "give one row and one column per peer, each with the sum 1"


def mixing_of_matrix(values: npt.ArrayLike) -> Mixing:
    """Return the nonzero entries. Raise an error if the matrix is not square, finite and doubly stochastic."""
    matrix = _numbers(values)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        shape = " x ".join(map(str, matrix.shape)) or "one number"
        raise ConfigurationError("weights", "must be a square matrix", shape, _FORM)
    wrong = np.argwhere(~((matrix >= 0) & np.isfinite(matrix)))
    if len(wrong):
        row, column = wrong[0].tolist()
        bound = f"must be finite and at least 0 in row {row}, column {column}"
        raise ConfigurationError("weights", bound, float(matrix[row, column]), _FORM)
    receivers, senders = np.nonzero((matrix != 0) | np.eye(len(matrix), dtype=bool))
    mixing = mixing_of_entries(len(matrix), receivers, senders, matrix[receivers, senders])
    check_sums(mixing, "push-sum, which needs only rows with the sum 1, is not supported")
    return mixing


def read_matrix(path: Path) -> Floats:
    try:
        if path.suffix == ".npy":
            return _numbers(np.load(path, allow_pickle=False))
        return np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        bound = "must be a .npy or .csv file of a matrix"
        raise ConfigurationError("weights", bound, str(path), str(error)) from None


def _numbers(values: npt.ArrayLike) -> Floats:
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigurationError("weights", "must be a matrix of numbers", values, _FORM) from None
