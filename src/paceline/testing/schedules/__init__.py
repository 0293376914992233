"""Proofs about schedules of collectives, by symbolic execution."""
