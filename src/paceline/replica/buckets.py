"""The gradient in buckets: runs of whole parameters, handed over as backward fills them."""

from __future__ import annotations

from paceline.replica.layout import Layout

__all__ = ["Buckets"]


class Buckets:
    """How the gradient is cut. Backward reaches the last parameters first, so the last bucket is handed over first."""

    def __init__(self, layout: Layout, bucket_bytes: int) -> None:
        self.bucket_bytes = bucket_bytes
        """About the size of each."""
        self.runs = layout.buckets(bucket_bytes)
        """The parameters of each, by their numbers."""
        self.of = {number: bucket for bucket, run in enumerate(self.runs) for number in run}
        """The bucket of each parameter."""
        # Every rank of a simulation asks for these in every step.
        self._places = [slice(layout.offsets[run.start], layout.offsets[run.stop]) for run in self.runs]
        self._order = range(len(self.runs) - 1, -1, -1)
        sizes = [self._places[number].stop - self._places[number].start for number in self._order]
        self._shares = [size / (layout.length or 1) for size in sizes]

    def place(self, number: int) -> slice:
        """Where a bucket lies in the flat gradient."""
        return self._places[number]

    def order(self) -> range:
        """In which they are handed over."""
        return self._order

    def shares(self) -> list[float]:
        """Each bucket's share of all parameters, in that order."""
        return self._shares
