"""A user's own training loop as a worker of a run: `pl.prepare`.

The strategy's program runs in a thread of the worker's process. It waits where it needs a gradient. `optimizer.step()`
passes it the gradient, and returns when the program waits for the next one. See docs/decisions/0032.
"""
