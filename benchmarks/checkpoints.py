"""Save and load 1 GB: ours against torch.save and torch.load, and torch.distributed.checkpoint on Gloo.

Saving is measured as the time that training waits. Ours and `async_save` copy the tensors and write in the background.
`torch.save` writes immediately, and does not wait for the disk. Loading ends when the values are in the training's own
tensors. The files are in the system's cache, as after a crash of the training process. Ours has a SHA-256 of every byte
and checks it when loading; the others have none.

Like ours, `async_save` uses a stager that reuses the memory of its copy for the next checkpoint.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from paceline.checkpoints import BackgroundWriter, Shard, Store

ROUNDS = 7
LIMIT_S = 180.0
TENSORS, NUMBERS = 64, 2**22  # 64 tensors of 16 MiB: 1 GiB, like 512 MiB of parameters with momentum
OURS, TORCH, DCP = "ours", "torch.save", "async_save"
DEADLINE_S = 600.0
PLAIN_MEMORY = StagingOptions(
    use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
)

State = dict[str, Tensor]


def measure() -> Result:
    result = Result(title="a checkpoint of 1 GiB, one rank", unit="s", rows=[], goals=[])
    with _folder() as folder, _gloo(folder):
        state = {f"parameters/{i}": torch.full((NUMBERS,), float(i)) for i in range(TENSORS)}
        contenders: list[_Contender] = [_Ours(folder), _Torch(folder), _Dcp(folder)]
        figures = _take_turns(contenders, state)
    rows = {what: Row(what=" ".join(what), rounds=seconds) for what, seconds in figures.items()}
    result.rows += rows.values()
    for what, aim in (("blocked", 1.0), ("load", 1.3)):
        ours = rows[OURS, what]
        better = min((rows[TORCH, what], rows[DCP, what]), key=lambda row: row.median)
        ratios = compare(ours, better)
        result.goals.append(Goal(what=f"{what}: ours / {better.what.split()[0]}", rounds=ratios, at_most=aim))
    written = compare(rows[OURS, "on the disk"], rows[DCP, "on the disk"])
    result.goals.append(Goal(what="on the disk: ours / async_save", rounds=written))
    result.notes.append("ours: SHA-256 of every byte, fsync; async_save: fsync; torch.save: neither")
    return result


class _Contender:
    name: str

    def save(self, state: State, number: int) -> Callable[[], object]:
        """Save the state. Return when training may continue. The returned function waits until all is written."""
        raise NotImplementedError

    def load(self, into: State, number: int) -> None:
        raise NotImplementedError


class _Ours(_Contender):
    name = OURS

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder / "ours", keep=1)
        self._store.begin(0)
        self._writer = BackgroundWriter(self._store)

    def save(self, state: State, number: int) -> Callable[[], object]:
        shard = Shard(rank=0, tensors=state, facts={})
        self._writer.submit(number, shard, lambda: self._store.commit(number, 1, {}, deadline_s=DEADLINE_S))
        return lambda: self._writer.finish(DEADLINE_S)

    def load(self, into: State, number: int) -> None:
        [found] = self._store.checkpoints()
        _copy(found.shard(0).tensors, into)


class _Torch(_Contender):
    name = TORCH

    def __init__(self, folder: Path) -> None:
        self._path = folder / "torch.pt"

    def save(self, state: State, number: int) -> Callable[[], object]:
        self._path.unlink(missing_ok=True)
        torch.save(state, self._path)
        return lambda: None

    def load(self, into: State, number: int) -> None:
        _copy(torch.load(self._path), into)


class _Dcp(_Contender):
    name = DCP

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "dcp"
        self._stager = DefaultStager(PLAIN_MEMORY)

    def save(self, state: State, number: int) -> Callable[[], object]:
        shutil.rmtree(self._place(number - 1), ignore_errors=True)
        done: Any = async_save(state, checkpoint_id=self._place(number), async_stager=self._stager)
        return done.result  # type: ignore[no-any-return]

    def load(self, into: State, number: int) -> None:
        load(into, checkpoint_id=self._place(number))

    def _place(self, number: int) -> Path:
        return self._folder / str(number)


def _copy(found: State, into: State) -> None:
    for name, tensor in into.items():
        tensor.copy_(found[name])


def _take_turns(contenders: list[_Contender], state: State) -> dict[tuple[str, str], list[float]]:
    """Run one save and one load of each per round, starting with another one each time. Skip the first round."""
    figures: dict[tuple[str, str], list[float]] = {}
    for number in rounds(ROUNDS + 1, LIMIT_S):
        start = number % len(contenders)
        for each in contenders[start:] + contenders[:start]:
            seconds = _one(each, state, number + 1)
            if number:
                for what, value in seconds.items():
                    figures.setdefault((each.name, what), []).append(value)
    return figures


def _one(contender: _Contender, state: State, number: int) -> dict[str, float]:
    for i, tensor in enumerate(state.values()):
        tensor.fill_(number + i / TENSORS)
    began_s = time.perf_counter()
    wait = contender.save(state, number)
    blocked_s = time.perf_counter() - began_s
    wait()
    written_s = time.perf_counter() - began_s
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    began_s = time.perf_counter()
    contender.load(loaded, number)
    load_s = time.perf_counter() - began_s
    if not all(torch.equal(loaded[name], tensor) for name, tensor in state.items()):
        raise AssertionError(f"{contender.name} loaded other values than it saved")
    return {"blocked": blocked_s, "on the disk": written_s, "load": load_s}


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Use the current folder: the temporary folder may not be on a disk."""
    with tempfile.TemporaryDirectory(prefix=".checkpoints-", dir=Path.cwd()) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _gloo(folder: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.distributed.destroy_process_group()
