"""Models of shapes only: tasks for simulations without mathematics, of any size and without memory."""

from paceline.models.gpt import GPT

__all__ = ["GPT"]
