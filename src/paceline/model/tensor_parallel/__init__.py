"""Tensor parallelism: a traced model with matrices split among the ranks of a tensor group, as in Megatron.

`spec` describes how a tensor is split. `rules` propagate a split through one operation, `region` through the graph.
`sequence` does the same for sequence parallelism between split layers. `behind` adds the loss, and `planning` chooses
the layers to split. `building` inserts the communication, and `sharded` is the resulting model.
"""
