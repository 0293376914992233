"""Training samples: orders, batches, streams, collating, and partitions among clients."""
