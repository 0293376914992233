"""Runs whose ranks are on several hosts, whoever started their processes.

A launcher (Ray, torchrun) starts a process for each rank. Each takes its `Berth`, whose seat the launcher hands round;
then all `work`. In between stands the `Hub`, in the driver, with a `Line` to each rank.
"""
