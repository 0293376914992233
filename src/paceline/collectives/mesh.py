"""Ranks as a mesh with named axes, such as data x pipeline x tensor. A rank has one net along each axis."""

from __future__ import annotations

import math
from collections.abc import Mapping

from paceline.context import Net
from paceline.errors import ConfigurationError, UnknownNameError


class Mesh:
    """All ranks of a net, in row-major order. Ranks along the last axis are adjacent, and often on one host."""

    def __init__(self, net: Net, **axes: int) -> None:
        for name, size in axes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ConfigurationError(name, "must be a whole number of at least 1", size)
        if math.prod(axes.values()) != net.size:
            words = " x ".join(f"{name}={size}" for name, size in axes.items())
            raise ConfigurationError("mesh", f"must have as many ranks as the net, {net.size}", words)
        self.axes: Mapping[str, int] = axes
        self._net = net

    def __getitem__(self, axis: str) -> Net:
        """Return the net of the ranks that differ from this one along this axis only, in the order of the axis."""
        stride = self._stride(axis)
        first = self._net.rank - self.position(axis) * stride
        return self._net.split(range(first, first + self.axes[axis] * stride, stride))

    def position(self, axis: str) -> int:
        """Return this rank's position along an axis."""
        return self._net.rank // self._stride(axis) % self.axes[axis]

    def _stride(self, axis: str) -> int:
        if axis not in self.axes:
            raise UnknownNameError("axis", axis, self.axes)
        names = list(self.axes)
        return math.prod(self.axes[name] for name in names[names.index(axis) + 1 :])
