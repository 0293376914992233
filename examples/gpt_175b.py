"""GPT-3's 175 billion parameters on simulated A100s: step times of pipelines and meshes, without allocating the model.

python examples/gpt_175b.py
"""

import torch

import paceline as pl

LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY, BATCH = 96, 12288, 96, 2048, 51200, 512
PIPELINES = (
    "pipeline:stages=24,microbatches=128,order=1f1b",
    "pipeline:stages=48,microbatches=128,order=1f1b",
    "pipeline:stages=48,microbatches=512,order=1f1b",
    "pipeline:stages=48,microbatches=128,order=zb-h1",
    "pipeline:stages=96,microbatches=512,order=1f1b",
)
MESHES = (  # data x pipeline x tensor, a tensor group on each host of 8
    "hybrid:data=8,pipeline=16,tensor=8,microbatches=64",
    "hybrid:data=16,pipeline=8,tensor=8,microbatches=32",
    "hybrid:data=8,pipeline=16,tensor=8,microbatches=64,order=interleaved,chunks=3",
)


def operations(layers: int, hidden: int, batch: int) -> float:
    """Return the floating-point operations of a step, as in Narayanan et al. (SC 2021), without recomputation."""
    extra = SEQUENCE / (6 * hidden) + VOCABULARY / (12 * layers * hidden)
    return 72 * batch * SEQUENCE * layers * hidden**2 * (1 + extra)


def workers_of(spec: str) -> int:
    """Return the number of workers: the number of stages, or the size of the mesh."""
    words = dict(word.split("=") for word in spec.partition(":")[2].split(","))
    workers = 1
    for axis in ("stages", "data", "pipeline", "tensor"):
        workers *= int(words.get(axis, 1))
    return workers


def main(
    layers: int = LAYERS,
    hidden: int = HIDDEN,
    heads: int = HEADS,
    batch: int = BATCH,
    specs: tuple[str, ...] = PIPELINES + MESHES,
) -> None:
    task = pl.models.GPT(layers, hidden, heads, SEQUENCE, VOCABULARY, batch, dtype=torch.bfloat16)
    print(f"a batch of {batch} sequences on A100s{'':46}a step    bubble    Tflop/s a device")
    for spec in specs:
        workers = workers_of(spec)
        cluster = pl.Simulated(
            workers=workers,
            hosts=max(1, workers // 8),
            math="none",
            device=pl.devices.A100,
            link=pl.Link("200Gbps", "5us"),
            inside=pl.Link("2400Gbps", "2us"),
        )
        run = pl.train(task, spec, cluster, steps=1)
        reached = operations(layers, hidden, batch) / run.step_seconds / workers
        print(f"  {spec:78}{run.step_seconds:7.1f} s    {run.trace.bubble:6.1%}    {reached / 1e12:6.1f}")


if __name__ == "__main__":
    main()
