"""Codecs as words: `bf16`, `int8`, `topk-0.01`, `powersgd-2`."""

from __future__ import annotations

from paceline.codecs.cast import FORMATS, Cast
from paceline.codecs.codec import GradientCodec, MessageCodec
from paceline.codecs.powersgd import PowerSGD
from paceline.codecs.quantize import QSGD
from paceline.codecs.sign import Sign
from paceline.codecs.top_k import TopK
from paceline.errors import ConfigurationError, UnknownNameError

NONE = "none"
NAMES = (NONE, "bf16", "fp16", "int8", "int4", "sign", "topk-RATIO", "powersgd-RANK")
"""Spellings of all codecs. RATIO and RANK are numbers."""

Codec = MessageCodec | GradientCodec


def codec_of(word: str | Codec) -> Codec | None:
    """Return the codec of a word such as "topk-0.01". None if the word is "none"."""
    if isinstance(word, (MessageCodec, GradientCodec)):
        return word
    name, *numbers = str(word).split("-", 1)
    if name in ("topk", "powersgd"):
        return _with_numbers(name, numbers[0] if numbers else "")
    if word == NONE:
        return None
    if word in FORMATS:
        return Cast(word)
    if word in ("int8", "int4"):
        return QSGD(int(word[3:]))
    if word == "sign":
        return Sign()
    raise UnknownNameError("codec", str(word), NAMES)


def _with_numbers(name: str, text: str) -> Codec:
    try:
        numbers = [float(part.replace("~", "-")) for part in text.replace("e-", "e~").split("-")]
    except ValueError:
        numbers = []
    most = 2 if name == "topk" else 1
    if not 0 < len(numbers) <= most or (name == "powersgd" and not numbers[0].is_integer()):
        example = "topk-0.01 sends a hundredth" if name == "topk" else "powersgd-2 has rank 2"
        bound = f"must have a number after {name}-"
        raise ConfigurationError("codec", bound, f"{name}-{text}", example)
    return TopK(*numbers) if name == "topk" else PowerSGD(int(numbers[0]))


def spell_codec(codec: str | Codec) -> str:
    """Return the word of a codec."""
    made = codec_of(codec)
    return NONE if made is None else str(made)
