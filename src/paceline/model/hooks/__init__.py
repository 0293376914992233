"""Passes through a whole module whose parameters are gathered and freed block by block, by hooks."""
