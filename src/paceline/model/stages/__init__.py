"""Model segments held by a rank: forward and backward passes, shards, and shape-only versions."""
