"""Checks of a task before training: its properties and costs, and the strategies that will not work with it."""

from paceline.checking.check import Checked, check_task
from paceline.checking.findings import Finding

__all__ = ["Checked", "Finding", "check_task"]
