"""The options of the commands: type, name and help of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, echo

_LINKS = "Links between real workers"
_MACHINES = "Simulated and emulated machines"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        echo(f"paceline {version('paceline')}")
        raise Exit


File = Annotated[
    str, Argument(metavar="FILE[:NAME]", help="Python file of the task; NAME selects one of several tasks.")
]
Strategy = Annotated[
    str, Option(help="Strategy: a name from `paceline strategies`, or name:parameter=value,…")
]
Workers = Annotated[int, Option(help="Number of ranks that compute gradients.")]
WorkersOfCluster = Annotated[
    int | None,
    Option(
        "--workers",
        help="Number of ranks that compute gradients. Default: 4, or all ranks of --cluster.",
        show_default=False,
    ),
]
Steps = Annotated[int | None, Option(help="Length of the run in updates of the parameters.")]
Epochs = Annotated[
    int | None,
    Option(help="Length of the run in passes over the data. Default: 10, unless --steps is given."),
]
Seed = Annotated[int, Option(help="Seed of the initial parameters and of all batches.")]
StopAtTarget = Annotated[
    bool, Option("--stop-at-target", help="End the run when the task's target is reached.")
]

Slow = Annotated[
    list[str] | None, Option(metavar="RANK:FACTOR", help="Slow rank, such as 3:4x. May be repeated.")
]
Delay = Annotated[
    list[str] | None,
    Option(
        metavar="TIMES",
        help="Delay of each gradient: exp:mean=50ms, or 2=exp:mean=50ms for rank 2. May be repeated.",
    ),
]
MinWorkers = Annotated[
    int | None,
    Option(help="Continue without lost workers while this many are left."),
]
Restart = Annotated[
    bool, Option("--restart", help="With --min-workers: start lost workers again. They join the run.")
]
Fault = Annotated[
    list[str] | None,
    Option(
        metavar="FAULT",
        help="Fault to inject: kill:rank=2,at=3s, pause:rank=1,step=40,seconds=5, "
        "slow:rank=3,factor=4,at=2s,seconds=10, cut:ranks=0+1,at=6s,seconds=3 or random:mean=10min. May be repeated.",
    ),
]
Deadline = Annotated[
    str | None, Option(metavar="TIME", help="Timeout of a rank that waits for another, such as 60s.")
]
Precision = Annotated[
    str | None,
    Option(
        help="Precision of matrix products: fp32, bf16 or fp16. The default is the precision of the task, usually fp32."
    ),
]
Threads = Annotated[
    int | None,
    Option(help="Compute threads of each rank. Default: the cores of its host divided by its workers."),
]

Device = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="Device of the ranks: cpu, auto, gpu, or torch's name, such as cuda. Default: cpu; on Ray, the GPU "
        "assigned to a rank.",
    ),
]

Simulate = Annotated[
    bool,
    Option(
        "--simulate",
        help="Simulate the workers in virtual time. Without it, train and compare emulate the given machines.",
        rich_help_panel=_MACHINES,
    ),
]
Link = Annotated[
    str | None,
    Option(
        metavar="KIND",
        help="Link between local workers: shared-memory (default) or tcp.",
        rich_help_panel=_LINKS,
    ),
]
Encrypt = Annotated[
    bool | None,
    Option(
        "--encrypt/--no-encrypt",
        help="Encrypt messages of --link tcp, --ray or --spark. Default: only between hosts of the latter two.",
        rich_help_panel=_LINKS,
    ),
]
Ray = Annotated[
    str | None,
    Option(
        metavar="[ADDRESS]",
        help="Train on a Ray cluster: auto, or its host:port. Without an address: a private Ray on this machine.",
    ),
]
Spark = Annotated[
    str | None,
    Option(
        metavar="[MASTER]",
        help="Train in the tasks of a Spark job on this master. Without a master: a private Spark on this machine.",
    ),
]
_KINDS = "Simulated, or emulated by train and compare."
Bandwidth = Annotated[
    str | None, Option(help=f"Bandwidth of each link, such as 1Gbps. {_KINDS}", rich_help_panel=_MACHINES)
]
Latency = Annotated[
    str | None, Option(help=f"Latency of each link, such as 50us. {_KINDS}", rich_help_panel=_MACHINES)
]
SlowLink = Annotated[
    list[str] | None,
    Option(
        metavar="RANK-RANK:BANDWIDTH",
        help=f"Link between two ranks that is slower, such as 0-3:100Mbps. May be repeated. {_KINDS}",
        rich_help_panel=_MACHINES,
    ),
]
Math = Annotated[
    str | None,
    Option(
        metavar="real|none",
        help="Whether simulated workers compute. none: only times, which needs --compute. Default: real.",
        rich_help_panel=_MACHINES,
    ),
]
Compute = Annotated[
    str | None,
    Option(
        metavar="TIMES",
        help="Time of a gradient, such as exp:mean=10ms. Local workers sleep for the rest of this time. "
        "Default: the real time on this machine.",
        rich_help_panel=_MACHINES,
    ),
]

Cluster = Annotated[
    str | None,
    Option(
        metavar="NAME|FILE",
        help="Description of a cluster: a YAML file, or a name such as dgx-a100. Simulated, or emulated.",
        rich_help_panel=_MACHINES,
    ),
]
Hosts = Annotated[
    int | None, Option(help="Number of hosts of --cluster.", rich_help_panel=_MACHINES, show_default=False)
]

Calibration = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="Measured costs of a machine, from `paceline calibrate`, for --simulate.",
        rich_help_panel=_MACHINES,
        show_default=False,
    ),
]

Strategies = Annotated[
    str,
    Option(
        metavar="STRATEGY,…",
        help="Strategies, separated by commas, such as all-reduce,k-sync:k=3,async.",
    ),
]
Repeat = Annotated[
    int, Option(help="Runs of each strategy, in rounds. Round n uses the seed --seed + n - 1.")
]
Target = Annotated[float | None, Option(help="Value of the metric to reach, instead of the task's target.")]
Against = Annotated[
    list[str] | None,
    Option(
        metavar="BASELINE",
        help="Baseline to include, on local workers: ddp (PyTorch's DistributedDataParallel on Gloo), spark "
        "(MapReduce on Spark).",
    ),
]
Baseline = Annotated[
    bool,
    Option(
        "--baseline/--no-baseline", help="Also run `single` on one worker, as the baseline for the speed-up."
    ),
]
TensorBoard = Annotated[
    Path | None, Option(metavar="DIR", help="Write loss and metric to this directory for TensorBoard.")
]

_CHECKPOINTS = "Checkpoints"
Checkpoint = Annotated[
    Path | None,
    Option(metavar="DIR", help="Save checkpoints in this directory.", rich_help_panel=_CHECKPOINTS),
]
CheckpointEvery = Annotated[
    str | None,
    Option(
        metavar="STEPS|TIME",
        help="Interval between checkpoints, such as 100 (steps) or 5min. Default: 5min.",
        rich_help_panel=_CHECKPOINTS,
    ),
]
Resume = Annotated[
    bool,
    Option(
        "--resume", help="Resume from the newest checkpoint, if there is one.", rich_help_panel=_CHECKPOINTS
    ),
]

FromDcp = Annotated[
    Path | None,
    Option(
        "--from-dcp",
        metavar="DIR",
        help="Begin with the weights in this folder of torch.distributed.checkpoint. "
        "A checkpoint of the run has priority.",
        rich_help_panel=_CHECKPOINTS,
    ),
]
MaxSeconds = Annotated[
    float | None,
    Option(
        help="End the run after this time with a last checkpoint, to be resumed: for jobs with a time limit.",
        rich_help_panel=_CHECKPOINTS,
    ),
]

Out = Annotated[Path | None, Option(metavar="DIR", help="Save history, trace and model in this directory.")]
OutWithPage = Annotated[
    Path | None,
    Option(
        "--out", metavar="DIR", help="Save every run in this directory, with an HTML report (report.html)."
    ),
]
ResumeComparison = Annotated[
    bool, Option("--resume", help="Continue an interrupted comparison: use the runs saved in --out.")
]
Json = Annotated[bool, Option("--json", help="Print only JSON to stdout.")]
Quiet = Annotated[bool, Option("--quiet", help="Do not show progress.")]
Version = Annotated[
    bool, Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
]
