"""The parameter `codec` of strategies."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from paceline.codecs import NAMES, GradientCodec, MessageCodec, PowerSGD, codec_of, spell_codec
from paceline.context import Context, Net
from paceline.errors import ConfigurationError
from paceline.schedules.collectives import ALL_REDUCE

_WHOLE_CHUNKS = ("ring", "naive-ring", "tree", "reduce-broadcast")
"""All-reduces in which one rank sends each chunk of the sum, and the others forward the same chunk."""
_PARTS_OF_CHUNKS = ("hierarchical", "halving-doubling")
"""All-reduces in which ranks forward several chunks together, so that blocks of numbers would be encoded anew."""


def codec_field(what: str) -> Any:
    """Return the dataclass field of a codec for `what`."""
    text = f"encoding of {what}: {', '.join(NAMES)}"
    return field(default="none", metadata={"help": text, "encodes": what})


def set_codec(strategy: object, algorithm: str | None = None, *, name: str = "codec") -> None:
    """Check a strategy's codec, and store it as a word. `algorithm` sums what it encodes; None if nothing is summed."""
    codec = codec_of(getattr(strategy, name))
    object.__setattr__(strategy, name, spell_codec(codec or "none"))  # equal codecs make equal strategies
    if codec is None or algorithm is None:
        return
    able = carriers(str(codec))
    if algorithm not in able:
        bound = f"must be one of {', '.join(able)}: no other carries codec={codec}"
        raise ConfigurationError("algorithm", bound, algorithm, "choose one of them, or codec=none")


def carriers(codec: str) -> tuple[str, ...]:
    """Return the all-reduce algorithms that can carry a codec."""
    made = codec_of(codec)
    if isinstance(made, MessageCodec):
        return ("auto", *_WHOLE_CHUNKS, *(_PARTS_OF_CHUNKS if made.is_elementwise else ()))
    if isinstance(made, PowerSGD):
        return ("auto", *ALL_REDUCE)
    return ("auto", "ring")  # ranks gather the codes of all on a ring


def gradient_codec(ctx: Context, codec: str, algorithm: str | None = None, *, net: Net | None = None) -> str:
    """Return the codec that carries gradients: that of the strategy, or of the task's precision if it has none.

    The precision has no codec between ranks that share memory, and for an `algorithm` that cannot carry it.
    """
    default, among = ctx.model.gradient_codec, ctx.net if net is None else net
    if codec != "none" or default == "none" or among.shares_memory:
        return codec
    return default if algorithm is None or algorithm in carriers(default) else "none"


def algorithm_for(codec: str, chosen: str) -> str:
    """Return the algorithm that `auto` stands for with a codec: the chosen one, or the ring if that cannot carry it."""
    return chosen if codec == "none" or chosen in carriers(codec) else "ring"


def keeps_residuals(codec: str) -> bool:
    """Return whether each worker keeps what the codec has not sent yet."""
    return isinstance(codec_of(codec), GradientCodec)
