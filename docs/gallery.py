"""Builds the gallery: for each strategy a page, and its textbook picture as the simulator draws it.

    make docs

A page says what the strategy's own module says (what it does, its cost, its paper), so nothing here can fall behind
the code. What a page adds is when to use it, and the scene of its picture. A strategy without a scene is an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import paceline as pl
from paceline.strategies import ALIASES, STRATEGIES
from paceline.trace.picture import draw

FOLDER = Path(__file__).parent / "gallery"

SOME_ARE_SLOW = pl.times.ShiftedExponential(0.02, 0.01)
SLOW_LINK = pl.Link(bandwidth="100Mbps", latency="1ms")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What a picture shows, and when one would want it."""

    when: str
    spec: str
    words: str = "times vary from batch to batch, the last worker is twice as slow"
    steps: int = 4
    workers: int = 4
    compute: object = SOME_ARE_SLOW
    slow: dict[int, float] = dataclasses.field(default_factory=lambda: {3: 2.0})
    math: str = "none"


STEADY = pl.times.Constant(0.02)
EVEN = {"compute": STEADY, "slow": {}, "words": "all workers alike"}

SCENES = {
    "single": Scene(
        spec="single",
        when="As the yardstick of all others, and for models that one worker trains quickly.",
        **EVEN | {"words": "one worker, the whole batch"},
    ),
    "map-reduce": Scene(
        spec="map-reduce",
        when="Few workers or small models; to see what a central server costs.",
        **EVEN,
    ),
    "all-reduce": Scene(
        spec="all-reduce:algorithm=ring",
        when="The default: equal workers, any size of model. One slow worker slows everybody.",
        steps=3,
    ),
    "sync": Scene(
        spec="sync",
        steps=3,
        when="Equal workers and a server with a fast port; as the yardstick of the parameter servers.",
    ),
    "central-storage": Scene(
        spec="central-storage:placement=worker",
        steps=3,
        when="Workers with little memory beside one that has much.",
        **EVEN,
    ),
    "k-sync": Scene(spec="k-sync:k=3", when="A few stragglers, and no wish for stale gradients."),
    "k-batch-sync": Scene(
        spec="k-batch-sync:k=4", when="Speeds that vary from batch to batch, and no wish for stale gradients."
    ),
    "async": Scene(spec="async", steps=14, when="Throughput matters more than staleness; workers uneven."),
    "k-async": Scene(spec="k-async:k=2", steps=8, when="Between sync and async: less stale than async."),
    "k-batch-async": Scene(
        spec="k-batch-async:k=2", steps=8, when="As k-async, where workers also differ in speed."
    ),
    "ssp": Scene(
        spec="ssp:staleness=1",
        steps=14,
        when="Stragglers that come and go, with a bound on how far they fall behind.",
    ),
    "hogwild": Scene(
        spec="hogwild",
        steps=12,
        math="real",
        when="Sparse gradients on one machine, where updates seldom touch the same parameters.",
    ),
    "local-sgd": Scene(
        spec="local-sgd:period=3",
        steps=6,
        when="A slow network: communicate once in H steps. H too large costs accuracy.",
    ),
    "diloco": Scene(
        spec="diloco:period=3", steps=6, when="Workers far apart, large models, H in the hundreds."
    ),
    "fedavg": Scene(
        spec="fedavg:fraction=0.5,batch=256",
        when="Data that must stay where it is: many clients, few of them at a time.",
    ),
    "fedprox": Scene(
        spec="fedprox:fraction=0.5,batch=256",
        when="As fedavg, where clients' data differ much: they drift less.",
    ),
    "fedadam": Scene(
        spec="fedadam:fraction=0.5,batch=256", when="As fedavg, for models that Adam trains better than SGD."
    ),
    "fedavgm": Scene(
        spec="fedavgm:fraction=0.5,batch=256",
        when="As fedavg, where rounds point in different directions: momentum smooths them.",
    ),
    "decentralized": Scene(
        spec="decentralized:topology=ring",
        when="High latency or many peers: a step costs a peer the same whatever their number.",
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
        (FOLDER / f"{name}.svg").write_text(picture(scene), encoding="utf-8")
        (FOLDER / f"{name}.md").write_text(page(name, kind, scene), encoding="utf-8")
    (FOLDER / "README.md").write_text(contents(), encoding="utf-8")
    print(f"{len(STRATEGIES)} pages in {FOLDER}")


def picture(scene: Scene) -> str:
    cluster = pl.Simulated(
        workers=scene.workers, compute=scene.compute, link=SLOW_LINK, slow=scene.slow, math=scene.math
    )
    run = pl.train(task(), scene.spec, cluster, steps=scene.steps, seed=3)
    return draw(run.trace.spans, run.trace.seconds, title=scene.spec, words=f"{scene.words}; {SLOW_LINK}")


def task() -> pl.Task:
    """A layer of 80 kB: 6.5 ms on the link of the pictures."""
    return pl.Task(
        model=lambda: nn.Linear(200, 100),
        data=(torch.zeros(1024, 200), torch.zeros(1024, 100)),
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        batch_size=64,
    )


def page(name: str, kind: type, scene: Scene) -> str:
    what, cost = divide(inspect.getdoc(inspect.getmodule(kind)) or "")
    lines = [f"# {name}", "", what, ""]
    lines += [f"![{scene.spec}: what each rank does over time]({name}.svg)", ""]
    lines += [f"`{scene.spec}` on {scene.workers} workers: {scene.words}. Drawn by the simulator.", ""]
    lines += ["## When", "", scene.when, "", *cost, *parameters(kind)]
    known_as = [alias for alias, known in ALIASES.items() if known == name]
    if known_as:
        lines += [f"Also known as `{'`, `'.join(known_as)}`.", ""]
    return "\n".join(lines)


def divide(docstring: str) -> tuple[str, list[str]]:
    """A module's docstring: what it does, and the paragraph of its cost and sources, a heading each."""
    *paragraphs, last = docstring.split("\n\n")
    if not last.startswith(("Cost", "Source")):
        return docstring, []
    lines: list[str] = []
    for line in last.splitlines():
        if line.startswith(("Cost", "Source")):
            heading = "Cost" if line.startswith("Cost") else "Source"
            lines += ["", f"## {heading}", "", _without_heading(line)]
        else:
            lines.append(line)
    return "\n\n".join(paragraphs), [*lines, ""]


def _without_heading(line: str) -> str:
    """ "Cost: …" and "Source: …" without their first word; "Cost, n bytes: …" as "With n bytes: …"."""
    if line.startswith("Cost, "):
        return f"With {line.removeprefix('Cost, ')}"
    return line.partition(":")[2].strip()


def parameters(kind: type) -> list[str]:
    fields = dataclasses.fields(kind)
    if not fields:
        return []
    rows = [
        f"| `{field.name}` | `{field.default}` | {field.metadata.get('help', '').replace('|', '/')} |"
        for field in fields
    ]
    return ["## Parameters", "", "| name | default | meaning |", "|---|---|---|", *rows, ""]


def contents() -> str:
    lines = ["# Gallery", "", "Every strategy at work. `make docs` draws these pages anew.", ""]
    for name, kind in STRATEGIES.items():
        summary = (inspect.getdoc(kind) or "").partition("\n")[0]
        lines += [f"## [{name}]({name}.md)", "", summary, "", f"![{name}]({name}.svg)", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
