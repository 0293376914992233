"""Us against the peers, in one run: `python -m benchmarks [name …] [--json FILE]`.

Each benchmark takes turns with its peer, round by round, and compares within a round, so that a machine that is busy
for a while disturbs both alike. What is printed is the median over rounds and, in brackets, the least and the most.
"""
