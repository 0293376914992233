"""Cost of a checkpoint in a step, and time until a resumed run makes its first step.

The model has 100 MB, the optimizer is SGD with momentum, and two workers train it. Every tenth step ends with a
checkpoint. The next step waits for the copy, and the following ones share the cores with the writer thread. That step
is compared with the five steps before it, in the same run. A resume is measured from the start of its process to the
end of its first step, against the same command without a checkpoint.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import paceline as pl
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds

ROUNDS = 5
LIMIT_S = 240.0
WORKERS = 2
WIDTH, LAYERS = 2560, 4  # 26 million parameters: 105 MB
BATCH = 256
EVERY, CHECKPOINTS = 10, 3
NEAR = 5
AIM = 1.3

SCRIPT = """
import sys
import paceline as pl
from benchmarks.resume import BATCH, a_task, WORKERS

class Stops:
    def on_step(self, record):
        print("stepped", flush=True)
        return pl.STOP

pl.train(a_task(), "all-reduce", pl.Local(workers=WORKERS), steps=1000, callbacks=[Stops()],
         checkpoint=sys.argv[1], checkpoint_every=500, resume=True)
"""


def _model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def a_task() -> pl.Task:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(BATCH, WIDTH, generator=generator)
    return pl.Task(
        model=_model,
        data=(data, data),
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9),
        batch_size=BATCH,
    )


def measure() -> Result:
    result = Result(title=f"checkpoints of a model of 105 MB, {WORKERS} workers", unit="s", rows=[], goals=[])
    plain, kept, tenth, starts, resumes = [], [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in rounds(ROUNDS, LIMIT_S):
            place = Path(folder) / str(number)
            run = pl.train(
                a_task(),
                "all-reduce",
                pl.Local(workers=WORKERS),
                steps=EVERY * CHECKPOINTS + 2,
                checkpoint=place,
                checkpoint_every=EVERY,
            )
            without, with_one = _steps(run)
            plain.append(without)
            kept.append(with_one)
            tenth.append(
                (run.history[-3].seconds - run.history[EVERY - 1].seconds) / (EVERY * (CHECKPOINTS - 1))
            )
            starts.append(_seconds_to_step(Path(folder) / f"new-{number}"))
            resumes.append(_seconds_to_step(place))
    rows = [
        Row(what="a step without a checkpoint", rounds=plain),
        Row(what="a step with a checkpoint", rounds=kept),
        Row(what="a step, one in ten with a checkpoint", rounds=tenth),
        Row(what="from the start of a process to the first step", rounds=starts),
        Row(what="the same, from a checkpoint", rounds=resumes),
    ]
    result.rows += rows
    result.goals += [
        Goal(what="a step with a checkpoint / without", rounds=compare(rows[1], rows[0]), at_most=AIM),
        Goal(what="a step, if one in ten has a checkpoint / without", rounds=compare(rows[2], rows[0])),
        Goal(what="resume / start", rounds=compare(rows[4], rows[3])),
    ]
    return result


def _steps(run: pl.Run) -> tuple[float, float]:
    """Return the seconds of steps after a checkpoint, and the median of the few steps before each one."""
    seconds = [record.seconds for record in run.history]
    taken = [after - before for before, after in itertools.pairwise(seconds)]  # from step 2 on
    places = [generation * EVERY - 1 for generation in range(1, CHECKPOINTS + 1)]
    without = [statistics.median(taken[place - NEAR : place]) for place in places]
    return statistics.median(without), statistics.median(taken[place] for place in places)


def _seconds_to_step(folder: Path) -> float:
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took_s = time.monotonic() - began_s
        if line.strip() != "stepped":
            raise RuntimeError(f"the run did not step: {line!r}")
        process.kill()  # the measurement is done, and its workers end with it
    return took_s
