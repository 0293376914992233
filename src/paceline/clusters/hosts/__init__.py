"""Runs whose ranks are on several hosts, whoever started their processes.

A launcher (Ray, torchrun) starts a process for each rank. Each makes its `RankProcess`, whose seat the launcher
hands round; then all `work`. In between stands the `Hub`, in the driver, to which each rank has a `HubClient`.
"""
