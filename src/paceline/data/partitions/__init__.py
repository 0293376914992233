"""Partitions of a dataset among clients, with their statistics and a plot."""

from __future__ import annotations

from paceline.data.partitions.partition import KINDS, Partition, PartitionFunction

__all__ = ["KINDS", "Partition", "PartitionFunction"]
