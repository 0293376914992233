"""A dataset parted among clients: how, what came of it in figures, and as a picture."""

from __future__ import annotations

from paceline.replica.partitions.partition import KINDS, Partition, PartitionFunction

__all__ = ["KINDS", "Partition", "PartitionFunction"]
