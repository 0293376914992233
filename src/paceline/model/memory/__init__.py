"""Memory of a rank: its ledger, and the figures that engines record in it."""

from __future__ import annotations

from paceline.model.memory.ledger import KINDS, TOTAL, Account, Kind, Ledger, empty_peak

__all__ = ["KINDS", "TOTAL", "Account", "Kind", "Ledger", "empty_peak"]
