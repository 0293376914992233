"""Simulation in virtual time: kernel, network, messages, and the contexts of the ranks."""
