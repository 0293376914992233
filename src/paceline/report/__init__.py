"""Runs as one self-contained HTML page: it needs no network, server or library."""

from paceline.report.page import write_page, write_run_page

__all__ = ["write_page", "write_run_page"]
