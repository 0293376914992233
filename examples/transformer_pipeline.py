"""A transformer in stages: simulated costs of the pipeline orders, then a run of one order in processes.

python examples/transformer_pipeline.py
paceline cut examples/transformer_pipeline.py --stages 2
"""

from functools import partial

import torch
from torch import Tensor, nn

import paceline as pl

LENGTH, WIDTH, HEADS, LAYERS, LETTERS = 32, 64, 4, 6, 16
ORDERS = ("gpipe", "1f1b", "interleaved,chunks=2", "zb-h1", "zb-h2")


class Transformer(nn.Module):
    """Embedding, a list of blocks, and a head that shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS, bias=False)
        self.head.weight = self.letters.weight

    def forward(self, codes: Tensor) -> Tensor:
        x = self.letters(codes) + self.places(torch.arange(codes.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def sums(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return random letters and targets.

    The target at each position is the sum of the first and the current letter.
    """
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, LETTERS, (count, LENGTH), generator=generator)
    return codes, (codes + codes[:, :1]) % LETTERS


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


task = pl.Task(
    model=Transformer,
    data=sums(4096, seed=0),
    loss=loss,
    optimizer=partial(torch.optim.AdamW, lr=1e-3),
    batch_size=32,
    clip_norm=1.0,
)


def simulate() -> None:
    """Simulate four machines: each pass of a micro-batch takes 10 ms, a message 1 ms."""
    phases = pl.times.Phases(forward="10ms", backward="10ms", weights="10ms")
    chunked = pl.times.Phases(forward="5ms", backward="5ms", weights="5ms")
    print("four stages, eight micro-batches     a step    bubble    memory of the largest")
    for order in ORDERS:
        compute = chunked if "chunks" in order else phases
        cluster = pl.Simulated(workers=4, compute=compute, link=pl.Link("10Gbps", "1ms"), math="none")
        run = pl.train(task, f"pipeline:microbatches=8,order={order}", cluster, steps=2)
        most = max(held["total"] for held in run.memory)
        print(f"  {order:32}{1e3 * run.step_seconds:6.0f} ms{run.trace.bubble:10.1%}{most / 1e6:10.1f} MB")


def main(steps: int = 30) -> None:
    simulate()
    run = pl.train(task, "pipeline:order=1f1b,microbatches=8", pl.Local(workers=2), steps=steps)
    print(f"two processes: loss {run.history[0].loss:.2f} to {run.loss:.2f} in {run.steps} steps")
    for rank, words in enumerate(run.holds):
        print(f"  rank {rank} held {words}")


if __name__ == "__main__":
    main()
