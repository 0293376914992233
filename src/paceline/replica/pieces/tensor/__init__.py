"""A traced model whose matrices are split among the ranks of a tensor group, as Megatron splits them.

`spec` says how a tensor is split, `rules` how an operation passes that on, `region` follows it through the graph,
`planning` decides which layers are split, and `sharded` is the model that comes of it.
"""
