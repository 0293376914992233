"""The words that the commands take: type, name and help of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, echo

_LINKS = "Links between real workers"
_MACHINES = "Machines that you do not have"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        echo(f"paceline {version('paceline')}")
        raise Exit


File = Annotated[
    str, Argument(metavar="FILE[:NAME]", help="The Python file of the task; its name, if there are several.")
]
Strategy = Annotated[
    str, Option(help="How the workers cooperate: a name of `paceline strategies`, or name:parameter=value,…")
]
Workers = Annotated[int, Option(help="How many ranks compute gradients.")]
Steps = Annotated[int | None, Option(help="Train for so many updates of the parameters.")]
Epochs = Annotated[
    int | None,
    Option(help="Train for so many passes over the data, counted in samples. 10, if --steps is not given."),
]
Seed = Annotated[int, Option(help="Sets the initial parameters and all batches.")]
StopAtTarget = Annotated[bool, Option("--stop-at-target", help="Stop when the task's target is reached.")]

Slow = Annotated[
    list[str] | None, Option(metavar="RANK:FACTOR", help="A slow rank, such as 3:4x. May be repeated.")
]
Delay = Annotated[
    list[str] | None,
    Option(
        metavar="TIMES",
        help="A delay before each gradient: exp:mean=50ms, or 2=exp:mean=50ms for rank 2. May be repeated.",
    ),
]
Deadline = Annotated[
    str | None, Option(metavar="TIME", help="The longest that a worker waits for another, such as 60s.")
]
Threads = Annotated[
    int | None,
    Option(
        help="With how many threads each rank computes. Left out: its host's cores, shared out among the workers."
    ),
]

Device = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="Where ranks compute: cpu, auto, gpu, or torch's name for it, such as cuda. Left out: cpu; on Ray, the "
        "GPU that a rank is given.",
    ),
]

Simulate = Annotated[
    bool,
    Option(
        "--simulate",
        help="Simulate the workers, in virtual time. Without it (not in bench) local workers emulate what is given.",
        rich_help_panel=_MACHINES,
    ),
]
Link = Annotated[
    str | None,
    Option(
        metavar="KIND",
        help="How local workers talk: shared-memory (the default) or tcp.",
        rich_help_panel=_LINKS,
    ),
]
Encrypt = Annotated[
    bool | None,
    Option(
        "--encrypt/--no-encrypt",
        help="Whether messages by --link tcp or --ray are encrypted. Left out: those of --ray between hosts are.",
        rich_help_panel=_LINKS,
    ),
]
Ray = Annotated[
    str | None,
    Option(
        metavar="[ADDRESS]",
        help="Train on a Ray cluster: auto, or the host:port of one. Without an address: a private Ray, here.",
    ),
]
_KINDS = "Simulated, or (by train and compare) emulated between local workers."
Bandwidth = Annotated[
    str | None, Option(help=f"Of each link, such as 1Gbps. {_KINDS}", rich_help_panel=_MACHINES)
]
Latency = Annotated[
    str | None, Option(help=f"Of each link, such as 50us. {_KINDS}", rich_help_panel=_MACHINES)
]
Compute = Annotated[
    str | None,
    Option(
        metavar="TIMES",
        help="What a gradient takes, such as exp:mean=10ms; local workers sleep for the rest of it. "
        "Left out: what it takes here.",
        rich_help_panel=_MACHINES,
    ),
]

Strategies = Annotated[
    str,
    Option(
        metavar="STRATEGY,…",
        help="Strategies with commas between them, such as all-reduce,k-sync:k=3,async.",
    ),
]
Repeat = Annotated[int, Option(help="Runs of each strategy, in rounds; round n has the seed --seed + n - 1.")]
Target = Annotated[float | None, Option(help="The metric's value to reach, in place of the task's own.")]
Against = Annotated[
    list[str] | None,
    Option(
        metavar="BASELINE",
        help="A baseline to stand against, on local workers: ddp, PyTorch's DistributedDataParallel on Gloo.",
    ),
]
Baseline = Annotated[
    bool, Option("--baseline/--no-baseline", help="Run `single` too, on one worker, for the speed-up.")
]
TensorBoard = Annotated[
    Path | None, Option(metavar="DIR", help="Write loss and metric there too, for TensorBoard.")
]

_GOING_ON = "Going on"
Checkpoint = Annotated[
    Path | None,
    Option(
        metavar="DIR", help="Keep the run in this directory, so that it can go on.", rich_help_panel=_GOING_ON
    ),
]
CheckpointEvery = Annotated[
    str | None,
    Option(
        metavar="STEPS|TIME",
        help="How often, such as 100 or 5min, which is the default.",
        rich_help_panel=_GOING_ON,
    ),
]
Resume = Annotated[
    bool,
    Option(
        "--resume", help="Go on from the newest checkpoint there, if there is one.", rich_help_panel=_GOING_ON
    ),
]

Out = Annotated[Path | None, Option(metavar="DIR", help="Save history, trace and model in this directory.")]
OutWithPage = Annotated[
    Path | None,
    Option("--out", metavar="DIR", help="Save every run there, and report.html: the page about them."),
]
Json = Annotated[bool, Option("--json", help="Print JSON, and nothing else, to stdout.")]
Quiet = Annotated[bool, Option("--quiet", help="Show no progress.")]
Version = Annotated[
    bool, Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
]
