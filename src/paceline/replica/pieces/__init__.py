"""A model in pieces: where it can be cut, where it is best cut, and how its segments are computed one by one."""

from paceline.replica.pieces.cut import Cut
from paceline.replica.pieces.cutting import cut_model

__all__ = ["Cut", "cut_model"]
