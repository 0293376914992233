"""Predictions of how long a step takes and how much memory it needs, without a run."""
