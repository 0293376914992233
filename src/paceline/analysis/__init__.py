"""Diagnosis of a trace, and comparison of strategies."""
