"""Names of other systems and our names for the same thing: aliases, error messages and docs/other_systems.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSystem:
    """One feature of another system."""

    system: str
    thing: str
    names: tuple[str, ...]
    """Strategy names that users of the other system might write."""
    ours: str = ""
    """The equivalent spec here, such as "all-reduce". `names` are then its aliases. Empty if there is none."""
    instead: str = ""
    """Text for the error message if there is no equivalent: a predicate, then what to write."""
    differs: str
    """The difference, in one or two sentences."""

    @property
    def theirs(self) -> str:
        return f"{self.system}'s {self.thing}" if self.thing else self.system

    @property
    def is_alias(self) -> bool:
        return bool(self.ours)


OTHER_SYSTEMS: tuple[OtherSystem, ...] = (
    OtherSystem(
        system="TensorFlow",
        thing="OneDeviceStrategy",
        names=("one-device",),
        ours="single",
        differs="Only the device: a CPU here.",
    ),
    OtherSystem(
        system="TensorFlow",
        thing="MirroredStrategy",
        names=("mirrored",),
        ours="all-reduce",
        differs="Theirs: threads of one process, with one GPU each. Ours: processes of one machine, on its CPU.",
    ),
    OtherSystem(
        system="TensorFlow",
        thing="MultiWorkerMirroredStrategy",
        names=("multi-worker-mirrored",),
        ours="all-reduce",
        differs="On several machines, use the cluster `pl.Ray` or `pl.Launched` instead of `TF_CONFIG`.",
    ),
    OtherSystem(
        system="TensorFlow",
        thing="CentralStorageStrategy",
        names=("central-storage",),
        ours="central-storage",
        differs="Theirs: variables on the CPU, computation on the GPUs of one machine. "
        "Ours: a server process, on any cluster.",
    ),
    OtherSystem(
        system="TensorFlow",
        thing="ParameterServerStrategy",
        names=("parameter-server",),
        ours="async",
        differs="Theirs is asynchronous, and a coordinator assigns the steps. "
        "Ours can also wait for all workers (`sync`), for some (`k-sync`) or for the slowest (`ssp`).",
    ),
    OtherSystem(
        system="TensorFlow",
        thing="TPUStrategy",
        names=("tpu",),
        instead="needs TPUs, which are not supported: write all-reduce, which does the same on CPUs",
        differs="Theirs: MirroredStrategy on the cores of TPUs.",
    ),
    OtherSystem(
        system="PyTorch",
        thing="DataParallel",
        names=("data-parallel", "dp"),
        ours="map-reduce",
        differs="Theirs: threads of one process; the first GPU gathers outputs, computes the loss and sums gradients. "
        "Ours: processes, each with its own loss. `all-reduce` gives the same weights, usually faster.",
    ),
    OtherSystem(
        system="PyTorch",
        thing="DistributedDataParallel",
        names=("ddp", "distributed-data-parallel"),
        ours="all-reduce",
        differs="Theirs averages over workers; its samplers pad or drop samples, so that workers have equally many. "
        "Ours weights by samples, so that any number of workers gives the weights of `single`. "
        "`paceline compare --against ddp` runs theirs.",
    ),
    OtherSystem(
        system="PyTorch",
        thing="FullyShardedDataParallel",
        names=("fsdp", "fsdp2", "fully-sharded-data-parallel"),
        ours="zero",
        differs="Theirs gathers the modules that the script has wrapped; ours cuts the model into segments "
        "automatically. Ours weights gradients by samples.",
    ),
    OtherSystem(
        system="Horovod",
        thing="DistributedOptimizer",
        names=("horovod",),
        ours="all-reduce",
        differs="The ring of its paper is `all-reduce:algorithm=ring`. No Adasum.",
    ),
    OtherSystem(
        system="DeepSpeed",
        thing="ZeRO",
        names=("zero-3", "deepspeed"),
        ours="zero",
        differs="Stages 1 and 2 are `zero:stage=1` and `zero:stage=2`. There is no offloading to the CPU or to disk.",
    ),
    OtherSystem(
        system="DeepSpeed",
        thing="ZeRO, stages 1 and 2",
        names=("zero-1", "zero-2"),
        instead="are stages of one strategy: write zero:stage=1 or zero:stage=2",
        differs="As above.",
    ),
    OtherSystem(
        system="Megatron-LM",
        thing="",
        names=("megatron", "megatron-lm", "tensor-parallel"),
        ours="tensor",
        differs="Theirs also has pipeline parallelism (`hybrid` here). Its sequence parallelism is `sequence=true`. "
        "With more workers than `size`, the groups divide the batch, as in theirs.",
    ),
    OtherSystem(
        system="GPipe",
        thing="",
        names=("gpipe", "pipeline-parallel", "1f1b"),
        ours="pipeline",
        differs="GPipe's order is `pipeline:order=gpipe`. The default is `1f1b`, PipeDream's order with one update per "
        "batch (PipeDream-Flush).",
    ),
    OtherSystem(
        system="PipeDream",
        thing="",
        names=("pipedream",),
        ours="pipeline:order=pipedream",
        differs="Theirs also replicates stages, and profiles the model to choose the cuts. Ours counts operations.",
    ),
    OtherSystem(
        system="PipeDream-2BW",
        thing="",
        names=("pipedream-2bw",),
        ours="pipeline:order=pipedream-2bw",
        differs="Theirs also chooses the number of stages, and of copies of the pipeline. Ours has one pipeline.",
    ),
    OtherSystem(
        system="PyTorch",
        thing="pipelining",
        names=("torch-pipelining",),
        ours="pipeline",
        differs="Theirs is a library for your own scripts. Its ScheduleGPipe, Schedule1F1B and "
        "ScheduleInterleaved1F1B are orders here, and ScheduleInterleavedZeroBubble with one chunk is `zb-h1`.",
    ),
    OtherSystem(
        system="PyTorch",
        thing="parallelize_module",
        names=("parallelize-module", "dtensor"),
        ours="tensor",
        differs="Its plan of ColwiseParallel and RowwiseParallel is `Task(tensor_plan={…})` with column and row, or is "
        "found automatically. There is no special tensor class, and the model is unchanged.",
    ),
    OtherSystem(
        system="the textbook",
        thing="model parallelism",
        names=("model-parallel", "model-parallelism"),
        ours="layers",
        differs="One worker computes at a time; `pipeline` uses all of them at the same time.",
    ),
    OtherSystem(
        system="JAX",
        thing="pmap",
        names=("pmap", "shard-map"),
        instead="is not a strategy; with the pmean of gradients it is all-reduce: write all-reduce",
        differs="Theirs maps any function over devices. `pl.run_program` runs any program on all ranks.",
    ),
    OtherSystem(
        system="JAX",
        thing="pjit",
        names=("pjit", "gspmd"),
        instead="is not supported, except for arrays that are split along the batch: write all-reduce",
        differs="Theirs, now part of `jit`: the compiler splits arrays along the axes of a mesh, as annotated.",
    ),
    OtherSystem(
        system="Alpa",
        thing="",
        names=("alpa",),
        instead="is not supported: compare strategies in advance with paceline compare --simulate",
        differs="Theirs searches for the best data, operator and pipeline parallelism of a model, and compiles it.",
    ),
    OtherSystem(
        system="Pathways",
        thing="",
        names=("pathways",),
        instead="is a runtime, not a strategy: write all-reduce, for example, and choose a cluster, such as --ray",
        differs="Theirs: one controller for the TPUs of several pods.",
    ),
    OtherSystem(
        system="Ray Train",
        thing="",
        names=("ray-train", "ray"),
        instead="is a cluster here, not a strategy: write all-reduce, for example, and add --ray (pl.Ray in Python)",
        differs="Theirs starts workers on Ray and leaves the strategy to PyTorch: DDP or FSDP. "
        "Ours runs every strategy there (`hogwild` on one host).",
    ),
    OtherSystem(
        system="Spark",
        thing="TorchDistributor",
        names=("torch-distributor", "spark"),
        instead="is a cluster here, not a strategy: write all-reduce, for example, "
        "and add --spark (pl.Spark in Python)",
        differs="Theirs starts a script of torch.distributed in the barrier tasks of a job. "
        "Ours runs every strategy there (`hogwild` on one host).",
    ),
    OtherSystem(
        system="Flower",
        thing="",
        names=("flower", "flwr"),
        instead="has several strategies: write fedavg, fedprox, fedavgm or fedadam",
        differs="Theirs: clients are separate programs on separate machines. "
        "Ours: clients are ranks of a run, each with its part of the task's data.",
    ),
)
"""All entries, in the order of docs/other_systems.md."""

ALIASES: Mapping[str, str] = {
    name: word.ours for word in OTHER_SYSTEMS if word.is_alias for name in word.names if name != word.ours
}
"""Maps a strategy's name in another system to its name here, if the two differ."""


def answer(name: str) -> ConfigurationError | None:
    """Return the error for a strategy name of another system, in any spelling; None if the name is unknown."""
    wanted = _squeezed(name)
    for word in OTHER_SYSTEMS:
        if wanted in map(_squeezed, (*word.names, word.thing or word.system)):
            told = f"is {word.ours} here: write that" if word.is_alias else word.instead
            remedy = f"{word.theirs} {told}"
            return ConfigurationError("strategy", "must be a name of `paceline strategies`", name, remedy)
    return None


def _squeezed(name: str) -> str:
    """Normalize a name, so that different spellings such as `MirroredStrategy` and `mirrored` are equal."""
    return re.sub(r"[^a-z0-9]", "", name.lower().rpartition(".")[2]).removesuffix("strategy")
