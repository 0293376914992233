"""Gradient buckets: groups of consecutive parameters. A bucket is ready when backward has computed all of it."""

from __future__ import annotations

from paceline.model.layout import Layout


class Buckets:
    """Buckets of the gradient. Backward reaches the last parameters first, so the last bucket is ready first."""

    def __init__(self, layout: Layout, bucket_bytes: int) -> None:
        self.bucket_bytes = bucket_bytes
        """Approximate size of a bucket."""
        self.runs = layout.buckets(bucket_bytes)
        """Parameter numbers of each bucket."""
        self.of = {number: bucket for bucket, run in enumerate(self.runs) for number in run}
        """Bucket of each parameter."""
        # Computed once: every rank of a simulation uses these in every step.
        self._places = [slice(layout.offsets[run.start], layout.offsets[run.stop]) for run in self.runs]
        self._order = range(len(self.runs) - 1, -1, -1)
        sizes = [self._places[number].stop - self._places[number].start for number in self._order]
        self._shares = [size / (layout.length or 1) for size in sizes]

    def place(self, number: int) -> slice:
        """Return the slice of a bucket in the flat gradient."""
        return self._places[number]

    def order(self) -> range:
        """Return the bucket numbers, in the order in which they become ready."""
        return self._order

    def shares(self) -> list[float]:
        """Return each bucket's share of all parameters, in that order."""
        return self._shares
