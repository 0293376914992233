"""Runs as one HTML page that needs nothing else: no network, no server, no library."""

from paceline.report.page import write_page, write_run_page

__all__ = ["write_page", "write_run_page"]
