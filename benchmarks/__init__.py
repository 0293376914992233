"""Paceline against the baselines, in one run: `python -m benchmarks [name …] [--json FILE]`.

Each benchmark alternates with its baseline, round by round, and compares within a round, so that other load on the
machine affects both equally. The output is the median over rounds and, in brackets, the minimum and the maximum.
"""
