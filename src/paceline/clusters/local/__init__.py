"""Processes on this machine: start, monitoring and end."""
