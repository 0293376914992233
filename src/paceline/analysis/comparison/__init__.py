"""Comparison of strategies: the same task, seed and cluster, several runs of each, a table and a summary."""
