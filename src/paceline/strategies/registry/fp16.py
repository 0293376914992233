"""Checks of strategies with `Task(precision="fp16")`, whose updates are skipped if a gradient overflows."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from paceline.errors import ConfigurationError
from paceline.schedules.pipeline import CONTINUOUS


def check_fp16(strategy: object, precision: str) -> None:
    """Raise if a strategy cannot skip updates: it loses an overflow, or has several batches in flight."""
    if precision != "fp16":
        return
    declared = fields(strategy) if is_dataclass(strategy) else ()
    encodes = {each.name: str(each.metadata.get("encodes")) for each in declared}
    codec = getattr(strategy, "codec", "none")
    if "gradients" in encodes.get("codec", "") and codec not in ("none", "bf16"):
        bound = 'must be none or bf16 with precision="fp16": it must not change infinity in gradients'
        raise ConfigurationError("codec", bound, codec, 'choose one of them, or precision="bf16"')
    order = getattr(strategy, "order", None)
    if isinstance(order, str) and order in CONTINUOUS:
        bound = f"must be bf16 or fp32 with order={order}: batches in flight would have several loss scales"
        raise ConfigurationError("precision", bound, precision, 'choose precision="bf16"')
