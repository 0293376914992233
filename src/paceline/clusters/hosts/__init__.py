"""Runs whose ranks are on several hosts, whoever started their processes.

A launcher (Ray, torchrun) starts a process for each rank. Each process makes a `RankProcess`. The launcher gives the
seats of all of them to all of them, and then every process calls `work`. The driver has a `Hub`; each rank talks to it
through a `HubClient`.
"""
