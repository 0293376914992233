"""The optimizer of the task on flat tensors: shards, saved state, moving averages."""
