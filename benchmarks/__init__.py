"""Us against the baselines, in one run: `python -m benchmarks [name …] [--json FILE]`.

Each benchmark takes turns with its baseline, round by round, and compares within a round. So a machine that is busy for
a while disturbs both alike. What is printed is the median over rounds and, in brackets, the least and the most.
"""
