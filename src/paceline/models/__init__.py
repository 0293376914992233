"""Models without data (meta tensors): tasks of any size, without memory, for predictions and simulations."""

from paceline.models.config import from_config
from paceline.models.gpt import GPT

__all__ = ["GPT", "from_config"]
