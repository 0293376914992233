"""Models without data (meta tensors): tasks of any size, without memory, for simulations with math="none"."""

from paceline.models.gpt import GPT

__all__ = ["GPT"]
