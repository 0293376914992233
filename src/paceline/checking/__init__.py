"""A task tried before it is trained: what it is and costs, and what will not work with which strategies."""

from paceline.checking.check import Checked, check_task
from paceline.checking.findings import Finding

__all__ = ["Checked", "Finding", "check_task"]
