"""Collective schedules, pipeline orders and topologies, as pure data."""
