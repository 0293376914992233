"""Ranks in the barrier tasks of a Spark job."""
