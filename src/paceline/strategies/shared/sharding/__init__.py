"""Code shared by the strategies that shard optimizer state, gradients or parameters."""
