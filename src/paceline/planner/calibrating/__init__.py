"""Measurement of a calibration: programs that run on the ranks of a machine, and what is derived from their times."""
