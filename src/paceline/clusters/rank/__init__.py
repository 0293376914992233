"""The parts of a rank that are the same in every cluster: identity, step loop, log."""
