"""The two ends of federated averaging: what its clients do and what its server does."""
