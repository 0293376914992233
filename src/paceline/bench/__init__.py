"""Benchmarks of the algorithms of each communication pattern: measured, verified, and compared with a prediction.

In the manner of nccl-tests. `Spec` defines a bench. `measure` runs it on local workers and `predict` times it on
simulated links; both return a `Report`. `fit_link` fits a link to ping-pong times, for calibration.
"""
