"""A traced model whose matrices are split among the ranks of a tensor group, as Megatron splits them.

`spec` says how a tensor is split, `rules` how an operation passes that on, `region` follows it through the graph, and
`sequence` that of what is between split layers. `behind` adds the loss, `planning` decides which layers are split,
`building` puts in what ranks need to talk, and `sharded` is the model that comes of it.
"""
