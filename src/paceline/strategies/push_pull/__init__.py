"""The two ends of the parameter server: what its workers do and what its servers do."""
