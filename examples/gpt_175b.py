"""GPT-3's 175 billion parameters on simulated A100s: what some pipelines would take, without a byte of the model.

python examples/gpt_175b.py
"""

import torch

import paceline as pl

LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY, BATCH = 96, 12288, 96, 2048, 51200, 512
PIPELINES = (
    "stages=24,microbatches=128,order=1f1b",
    "stages=48,microbatches=128,order=1f1b",
    "stages=48,microbatches=512,order=1f1b",
    "stages=48,microbatches=128,order=zb-h1",
    "stages=96,microbatches=512,order=1f1b",
)


def operations(layers: int, hidden: int, batch: int) -> float:
    """Floating-point operations of a step, as Narayanan et al. (SC 2021) count them, without recomputation."""
    extra = SEQUENCE / (6 * hidden) + VOCABULARY / (12 * layers * hidden)
    return 72 * batch * SEQUENCE * layers * hidden**2 * (1 + extra)


def main(layers: int = LAYERS, hidden: int = HIDDEN, heads: int = HEADS, batch: int = BATCH) -> None:
    task = pl.models.GPT(layers, hidden, heads, SEQUENCE, VOCABULARY, batch, dtype=torch.bfloat16)
    print(f"a batch of {batch} sequences on A100s      a step    bubble    Tflop/s a device")
    for words in PIPELINES:
        stages = min(layers, int(words.partition(",")[0].removeprefix("stages=")))
        rest = words.partition(",")[2]
        cluster = pl.Simulated(
            workers=stages, math="none", device=pl.devices.A100, link=pl.Link("200Gbps", "5us")
        )
        run = pl.train(task, f"pipeline:stages={stages},{rest}", cluster, steps=1)
        reached = operations(layers, hidden, batch) / run.step_seconds / stages
        print(f"  {words:40}{run.step_seconds:7.1f} s    {run.trace.bubble:6.1%}    {reached / 1e12:6.1f}")


if __name__ == "__main__":
    main()
