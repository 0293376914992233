"""Random runs for as long as one likes, each made from one number, each checked against what must be true of it.

It is no part of the product: `make soak` runs it. See docs/soak.md.
"""
