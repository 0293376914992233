"""The programs of a decentralized peer: all in step with its neighbours, or pairwise at its own pace."""
