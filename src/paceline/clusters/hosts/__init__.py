"""Runs with ranks on several hosts, independent of the launcher.

A launcher (Ray, torchrun) starts a process for each rank. Each process creates a `RankProcess`. The launcher sends the
members' addresses to all processes, and then every process calls `work`. The driver has a `Hub`. Each rank communicates
with it through a `HubClient`.
"""
