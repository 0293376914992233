"""Random runs for any length of time. Each is generated from one number, and its result is checked.

This is not part of the product. `make soak` runs it. See docs/soak.md.
"""
