"""Description of the part of a model that a rank holds, for errors, reports and timelines."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.model.cutting.cut import Cut


def what_is_held(cut: Cut, held: Sequence[int], *, shard: tuple[int, int] | None = None) -> str:
    """Return a description such as "stage 1 of 2: layers 4 … 7, tensor part 0 of 2". All numbers count from 0.

    `shard` is (shard number, shard count) if ranks share these segments. Empty if the rank holds the whole model.
    """
    words = [_layers(cut, held)]
    if cut.shares is not None:
        words.append(f"tensor part {cut.position} of {cut.shares.size}")
    if shard is not None:
        own, ranks = shard
        words.append(f"shard {own} of {ranks}")
    if len(words) == 1 and len(held) == len(cut.segments):
        return ""
    return ", ".join(words)


def _layers(cut: Cut, held: Sequence[int]) -> str:
    segments = cut.segments
    if not held:
        return "no layers"
    if len(held) == len(segments):
        return "all layers"
    stages: dict[int, list[int]] = {}
    for number in held:
        stages.setdefault(segments[number].stage, []).append(number)
    runs = [_run(*cut.names.between(cut.bounds[own[0]], cut.bounds[own[-1] + 1])) for own in stages.values()]
    numbers, layers = " and ".join(map(str, stages)), " and ".join(runs)
    stage_word = "stage" if len(stages) == 1 else "stages"
    layer_word = "layers" if " " in layers else "layer"
    return f"{stage_word} {numbers} of {segments[-1].stage + 1}: {layer_word} {layers}"


def _run(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"
