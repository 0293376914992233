"""Build the gallery: one page for each strategy, with a timeline drawn from a simulation.

    make docs

The text of a page comes from the docstring of the strategy's module (method, when to use it, cost, paper), so it cannot
become outdated. Only the scene of the timeline is defined here. A strategy without a scene is an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.strategies import ALIASES, STRATEGIES
from paceline.strategies.registry.descriptions import description_of
from paceline.strategies.registry.table import word_of
from paceline.trace.picture import draw

FOLDER = Path(__file__).parent / "gallery"

SOME_ARE_SLOW = pl.times.ShiftedExponential(0.02, 0.01)
SLOW_LINK = pl.Link(bandwidth="100Mbps", latency="1ms")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """The simulated run that a picture shows."""

    spec: str
    caption: str = "times vary from batch to batch, and the last worker is twice as slow"
    steps: int = 4
    workers: int = 4
    compute: object = SOME_ARE_SLOW
    slow: dict[int, float] = dataclasses.field(default_factory=lambda: {3: 2.0})
    math: str = "none"
    model: str = "layer"
    """Key in `TASKS`."""
    more: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Further specs of the strategy that get their own pictures, with the caption of each."""
    more_steps: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Steps of these runs, if not `steps`."""


STEADY = pl.times.Constant(0.02)
EVEN = {"compute": STEADY, "slow": {}, "caption": "all workers have equal speed"}

SCENES = {
    "single": Scene(
        spec="single",
        **EVEN | {"caption": "one worker, the whole batch"},
    ),
    "map-reduce": Scene(
        spec="map-reduce",
        **EVEN,
    ),
    "all-reduce": Scene(
        spec="all-reduce:algorithm=ring",
        steps=3,
    ),
    "sync": Scene(
        spec="sync",
        steps=3,
    ),
    "central-storage": Scene(
        spec="central-storage:placement=worker",
        steps=3,
        **EVEN,
    ),
    "layers": Scene(
        spec="layers:cuts=2+4+6",
        steps=2,
        model="deep",
        **EVEN | {"caption": "two batches, each forward and backward through four ranks"},
    ),
    "pipeline": Scene(
        spec="pipeline:order=1f1b,microbatches=6",
        steps=1,
        model="deep",
        more={
            "pipeline:order=gpipe,microbatches=6": "all forward passes first: equally fast, more memory",
            "pipeline:order=interleaved,chunks=2,microbatches=8": "each rank has two stages, one per half",
            "pipeline:order=zb-h1,microbatches=6": "weight gradients fill the idle time at the end",
            "pipeline:order=zb-h2,microbatches=8": "more micro-batches in flight fill the idle time at the start",
            "pipeline:order=pipedream": "twelve batches of one micro-batch, without a flush between them",
            "pipeline:order=pipedream-2bw,microbatches=4": "four batches without a flush, one update for each",
        },
        more_steps={"pipeline:order=pipedream": 12, "pipeline:order=pipedream-2bw,microbatches=4": 4},
        **EVEN
        | {
            "compute": pl.times.Phases("4ms", "4ms", "4ms"),
            "caption": "the numbers are micro-batches; the gaps between them are the bubble",
        },
    ),
    "tensor": Scene(
        spec="tensor",
        steps=1,
        model="deep",
        more={
            "tensor:size=2": "two groups of two, each with half of the batch; they sum their gradients at the end"
        },
        **EVEN
        | {
            "caption": "four pairs of layers, each with a sum forward and, except for the first, one backward"
        },
    ),
    "zero": Scene(
        spec="zero:stage=3,segments=8",
        steps=1,
        model="wide",
        **EVEN
        | {
            "compute": pl.times.Constant(0.12),
            "caption": "segments are gathered and their gradients scattered while other segments are computed; "
            "the last gathers are for run.model",
        },
    ),
    "hybrid": Scene(
        spec="hybrid:pipeline=2,microbatches=4",
        steps=1,
        model="deep",
        more={
            "hybrid:pipeline=2,tensor=2,microbatches=4,cuts=4": "a pipeline of two stages, each a tensor group"
        },
        **EVEN
        | {
            "compute": pl.times.Phases("4ms", "4ms", "4ms"),
            "caption": "two pipelines of two stages; they sum their gradients at the end",
        },
    ),
    "k-sync": Scene(spec="k-sync:k=3"),
    "k-batch-sync": Scene(spec="k-batch-sync:k=4"),
    "async": Scene(spec="async", steps=14),
    "k-async": Scene(spec="k-async:k=2", steps=8),
    "k-batch-async": Scene(spec="k-batch-async:k=2", steps=8),
    "ssp": Scene(
        spec="ssp:staleness=1",
        steps=14,
    ),
    "hogwild": Scene(
        spec="hogwild",
        steps=12,
        math="real",
    ),
    "local-sgd": Scene(
        spec="local-sgd:period=3",
        steps=6,
    ),
    "diloco": Scene(spec="diloco:period=3", steps=6),
    "fedavg": Scene(
        spec="fedavg:fraction=0.5,batch=256",
    ),
    "fedprox": Scene(
        spec="fedprox:fraction=0.5,batch=256",
    ),
    "fedadam": Scene(spec="fedadam:fraction=0.5,batch=256"),
    "fedavgm": Scene(
        spec="fedavgm:fraction=0.5,batch=256",
    ),
    "decentralized": Scene(
        spec="decentralized:topology=ring",
    ),
}


def main() -> None:
    missing = sorted(set(STRATEGIES) - set(SCENES))
    if missing:
        sys.exit(f"docs/gallery.py has no scene for {', '.join(missing)}: add one to SCENES")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for name, kind in STRATEGIES.items():
        scene = SCENES[name]
        (FOLDER / f"{name}.svg").write_text(picture(scene, scene.spec, scene.caption), encoding="utf-8")
        for number, (spec, caption) in enumerate(scene.more.items(), 2):
            each = dataclasses.replace(scene, steps=scene.more_steps.get(spec, scene.steps))
            (FOLDER / f"{name}-{number}.svg").write_text(picture(each, spec, caption), encoding="utf-8")
        (FOLDER / f"{name}.md").write_text(page(name, kind, scene), encoding="utf-8")
    (FOLDER / "README.md").write_text(contents(), encoding="utf-8")
    print(f"{len(STRATEGIES)} pages in {FOLDER}")


def picture(scene: Scene, spec: str, caption: str) -> str:
    cluster = pl.Simulated(
        workers=scene.workers, compute=scene.compute, link=SLOW_LINK, slow=scene.slow, math=scene.math
    )
    run = pl.train(TASKS[scene.model](), spec, cluster, steps=scene.steps, seed=3)
    in_stages = any(each.startswith("stage") for each in run.holds)
    caption += f"; bubble {run.trace.bubble:.0%}" if in_stages else f"; {SLOW_LINK}"
    return draw(run.trace.spans, run.trace.seconds, title=spec, words=caption, under=under(run.holds))


def under(holds: Sequence[str]) -> list[str]:
    """Return short labels for the parts that ranks hold, such as "stage 1, part 0"."""
    parts = [[part.split(" of ")[0].removeprefix("tensor ") for part in each.split(", ")] for each in holds]
    return [", ".join(part for part in each if part != "all layers") for each in parts]


def task() -> pl.Task:
    """Make a task with one layer of 80 kB, which takes 6.5 ms on the link of the pictures."""
    return pl.Task(
        model=lambda: nn.Linear(200, 100),
        data=(torch.zeros(1024, 200), torch.zeros(1024, 100)),
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        batch_size=64,
    )


def deep_task() -> pl.Task:
    """Make a task with eight equal layers. Their outputs have 1.6 kB per micro-batch, so sending is quick."""
    return pl.Task(
        model=lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(8))),
        data=(torch.zeros(1024, 8), torch.zeros(1024, 8)),
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        batch_size=48,
    )


def wide_task() -> pl.Task:
    """Make a task with eight equal layers of 40 kB. Four ranks gather one of them in 4 ms."""
    return pl.Task(
        model=lambda: nn.Sequential(*(nn.Linear(100, 100) for _ in range(8))),
        data=(torch.zeros(1024, 100), torch.zeros(1024, 100)),
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        batch_size=64,
    )


TASKS = {"layer": task, "deep": deep_task, "wide": wide_task}


def page(name: str, kind: type, scene: Scene) -> str:
    told = description_of(kind)
    lines = [f"# {name}", "", told.what, ""]
    lines += [f"![{scene.spec}: what each rank does over time]({name}.svg)", ""]
    lines += [f"`{scene.spec}` on {scene.workers} workers: {scene.caption}. Drawn by the simulator.", ""]
    for number, (spec, caption) in enumerate(scene.more.items(), 2):
        lines += [f"![{spec}: what each rank does over time]({name}-{number}.svg)", ""]
        lines += [f"`{spec}`: {caption}.", ""]
    for heading, text in told.notes.items():
        lines += [f"## {heading}", "", text, ""]
    lines += parameters(kind)
    known_as = [alias for alias in ALIASES if word_of(alias) == name]
    if known_as:
        lines += [f"Also known as `{'`, `'.join(known_as)}`.", ""]
    return "\n".join(lines)


def parameters(kind: type) -> list[str]:
    fields = dataclasses.fields(kind)
    if not fields:
        return []
    rows = [f"| `{field.name}` | {default(field)} | {help_of(field)} |" for field in fields]
    return ["## Parameters", "", "| name | default | meaning |", "|---|---|---|", *rows, ""]


def default(field: dataclasses.Field[Any]) -> str:
    return "none" if field.default == "" else f"`{field.default}`"


def help_of(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("help", "")).replace("|", "/")


def contents() -> str:
    lines = ["# Gallery", "", "A timeline of every strategy. `make docs` regenerates these pages.", ""]
    for name, kind in STRATEGIES.items():
        summary = (inspect.getdoc(kind) or "").partition("\n")[0]
        lines += [f"## [{name}]({name}.md)", "", summary, "", f"![{name}]({name}.svg)", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
