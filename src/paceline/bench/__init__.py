"""How long each algorithm of a communication pattern takes here: measured, checked, and set beside a prediction.

In the manner of nccl-tests. `Spec` says what is asked for; `measure` runs it on local workers and `predict` times it
on simulated links; both give a `Report`. `fit_link` turns ping-pong times into a link, for calibration.
"""
