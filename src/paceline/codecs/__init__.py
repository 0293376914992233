"""Codecs: fewer bytes for gradients and parameters on the way between ranks.

`bf16`, `fp16`, `int8` and `int4` encode every message. `Sign`, `TopK` and `PowerSGD` encode a gradient once, and the
ranks exchange the codes; what is not sent is kept and added to the next gradient (error feedback). In a strategy's spec
a codec is one word: `all-reduce:codec=topk-0.01`.
"""

from paceline.codecs.cast import Cast
from paceline.codecs.codec import GradientCodec, MessageCodec
from paceline.codecs.powersgd import PowerSGD
from paceline.codecs.quantize import QSGD
from paceline.codecs.sign import Sign
from paceline.codecs.spelling import NAMES, codec_of, spell_codec
from paceline.codecs.top_k import TopK

bf16 = Cast("bf16")
fp16 = Cast("fp16")
int8 = QSGD(8)
int4 = QSGD(4)

__all__ = [
    "NAMES",
    "QSGD",
    "Cast",
    "GradientCodec",
    "MessageCodec",
    "PowerSGD",
    "Sign",
    "TopK",
    "bf16",
    "codec_of",
    "fp16",
    "int4",
    "int8",
    "spell_codec",
]
