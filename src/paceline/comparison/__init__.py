"""Strategies side by side: the same task, seed and cluster, several runs of each, and what the figures say."""
