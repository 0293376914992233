"""Shared memory between the ranks of one host: segments, rings, wake-ups."""
