"""The programs of a decentralized peer: synchronous with all neighbours, or asynchronous and pairwise."""
