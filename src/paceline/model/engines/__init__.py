"""Engines of a replica: one computes with torch, one tracks shapes only."""
