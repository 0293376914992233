"""The words of other systems, and ours for the same thing: aliases, answers to words that we lack, docs/words.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import ConfigurationError

__all__ = ["ALIASES", "WORDS", "Word", "answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One thing of another system."""

    system: str
    thing: str
    names: tuple[str, ...]
    """What people might write as a strategy."""
    ours: str = ""
    """The strategy that is the same thing: the names are then names of it. Empty where there is none."""
    instead: str = ""
    """What to say of it where there is none: a predicate, and then what to write."""
    differs: str
    """What is different, in one or two sentences."""

    @property
    def theirs(self) -> str:
        return f"{self.system}'s {self.thing}" if self.thing else self.system

    @property
    def is_alias(self) -> bool:
        return bool(self.ours)


WORDS: tuple[Word, ...] = (
    Word(
        system="TensorFlow",
        thing="OneDeviceStrategy",
        names=("one-device",),
        ours="single",
        differs="Nothing but the device, which is a CPU here.",
    ),
    Word(
        system="TensorFlow",
        thing="MirroredStrategy",
        names=("mirrored",),
        ours="all-reduce",
        differs="Theirs: threads of one process, a GPU each. Ours: processes of one machine, on its CPU.",
    ),
    Word(
        system="TensorFlow",
        thing="MultiWorkerMirroredStrategy",
        names=("multi-worker-mirrored",),
        ours="all-reduce",
        differs="On several machines the cluster is `pl.Ray` or `pl.Launched` in place of `TF_CONFIG`.",
    ),
    Word(
        system="TensorFlow",
        thing="CentralStorageStrategy",
        names=("central-storage",),
        ours="central-storage",
        differs="Theirs: variables on the CPU, computation on the GPUs of one machine. "
        "Ours: a server process, on any cluster.",
    ),
    Word(
        system="TensorFlow",
        thing="ParameterServerStrategy",
        names=("parameter-server",),
        ours="async",
        differs="Theirs is asynchronous, and hands out steps by a coordinator. "
        "Ours also waits, for all workers (`sync`), for some (`k-sync`) or for the slowest (`ssp`).",
    ),
    Word(
        system="TensorFlow",
        thing="TPUStrategy",
        names=("tpu",),
        instead="needs TPUs, which are not supported: write all-reduce, which does the same on CPUs",
        differs="Theirs: the all-reduce of MirroredStrategy, on the cores of TPUs.",
    ),
    Word(
        system="PyTorch",
        thing="DataParallel",
        names=("data-parallel", "dp"),
        ours="map-reduce",
        differs="Theirs: threads of one process; the first GPU gathers outputs, computes the loss and sums gradients. "
        "Ours: processes, each with its own loss. `all-reduce` gives the same weights, mostly sooner.",
    ),
    Word(
        system="PyTorch",
        thing="DistributedDataParallel",
        names=("ddp", "distributed-data-parallel"),
        ours="all-reduce",
        differs="Theirs averages over workers, whose samplers pad or drop samples to have equally many. "
        "Ours weights by samples, so that any number of workers gives the weights of one. "
        "`paceline compare --against ddp` runs theirs.",
    ),
    Word(
        system="PyTorch",
        thing="FullyShardedDataParallel",
        names=("fsdp", "fsdp2", "fully-sharded-data-parallel"),
        ours="zero",
        differs="Theirs gathers the modules that the script has wrapped; ours cuts the model into segments by itself. "
        "Ours weights gradients by samples.",
    ),
    Word(
        system="Horovod",
        thing="DistributedOptimizer",
        names=("horovod",),
        ours="all-reduce",
        differs="The ring of its paper is `all-reduce:algorithm=ring`. No Adasum.",
    ),
    Word(
        system="DeepSpeed",
        thing="ZeRO",
        names=("zero-3", "deepspeed"),
        ours="zero",
        differs="Stages 1 and 2 are `zero:stage=1` and `zero:stage=2`. Nothing is moved to the processor or to disks.",
    ),
    Word(
        system="DeepSpeed",
        thing="ZeRO, stages 1 and 2",
        names=("zero-1", "zero-2"),
        instead="are stages of one strategy: write zero:stage=1 or zero:stage=2",
        differs="As above.",
    ),
    Word(
        system="Megatron-LM",
        thing="",
        names=("megatron", "megatron-lm", "tensor-parallel"),
        ours="tensor",
        differs="Theirs has layers in a pipeline besides. Its sequence parallelism is `sequence=true`. With more "
        "workers than `size` the groups share the batch here, too.",
    ),
    Word(
        system="GPipe, PipeDream",
        thing="",
        names=("gpipe", "pipedream", "pipeline-parallel", "1f1b"),
        ours="pipeline",
        differs="GPipe's order is `pipeline:order=gpipe`. PipeDream's is the default, `1f1b`, with one update a batch: "
        "no weights of several versions.",
    ),
    Word(
        system="PyTorch",
        thing="pipelining",
        names=("torch-pipelining",),
        ours="pipeline",
        differs="Theirs is a library for scripts of your own. Its ScheduleGPipe, Schedule1F1B and "
        "ScheduleInterleaved1F1B are orders here, and ScheduleInterleavedZeroBubble with one chunk is `zb-h1`.",
    ),
    Word(
        system="PyTorch",
        thing="parallelize_module",
        names=("parallelize-module", "dtensor"),
        ours="tensor",
        differs="Its plan of ColwiseParallel and RowwiseParallel is `Task(tensor_plan={…})` with column and row, or is "
        "found by itself. No tensors of a kind of their own: the model stays as it is.",
    ),
    Word(
        system="the textbook",
        thing="model parallelism",
        names=("model-parallel", "model-parallelism"),
        ours="layers",
        differs="One worker works at a time; `pipeline` keeps all of them busy.",
    ),
    Word(
        system="JAX",
        thing="pmap",
        names=("pmap", "shard-map"),
        instead="is no strategy by itself; with the pmean of gradients it is all-reduce: write that",
        differs="Theirs maps any function over devices. `pl.run_program` runs any program on all ranks.",
    ),
    Word(
        system="JAX",
        thing="pjit",
        names=("pjit", "gspmd"),
        instead="is not there yet, but for arrays that are cut along the batch: write all-reduce",
        differs="Theirs, now part of `jit`: the compiler cuts arrays along the axes of a mesh as annotations say.",
    ),
    Word(
        system="Alpa",
        thing="",
        names=("alpa",),
        instead="is not there yet: compare strategies beforehand, by paceline compare --simulate",
        differs="Theirs searches data, operator and pipeline parallelism for a model and compiles what it finds.",
    ),
    Word(
        system="Pathways",
        thing="",
        names=("pathways",),
        instead="is a runtime and no strategy: write all-reduce, say, and choose a cluster, such as --ray",
        differs="Theirs: one controller for the TPUs of several pods.",
    ),
    Word(
        system="Ray Train",
        thing="",
        names=("ray-train", "ray"),
        instead="is a cluster here and no strategy: write all-reduce, say, and add --ray (pl.Ray in Python)",
        differs="Theirs starts workers on Ray and leaves the strategy to PyTorch: DDP or FSDP. "
        "Ours runs every strategy there (`hogwild` on one host).",
    ),
    Word(
        system="Flower",
        thing="",
        names=("flower", "flwr"),
        instead="has several strategies: write fedavg, fedprox, fedavgm or fedadam",
        differs="Theirs: clients are programs of their own on machines of their own. "
        "Ours: ranks of a run, each with its part of the task's data.",
    ),
)
"""In the order of docs/words.md."""

ALIASES: Mapping[str, str] = {
    name: word.ours for word in WORDS if word.is_alias for name in word.names if name != word.ours
}
"""Names that users of other systems know, of strategies that have another name here."""


def answer(name: str) -> ConfigurationError | None:
    """What to say to somebody who asks for a strategy by a word of another system, spelt in any way."""
    wanted = _squeezed(name)
    for word in WORDS:
        if wanted in map(_squeezed, (*word.names, word.thing or word.system)):
            told = f"is {word.ours} here: write that" if word.is_alias else word.instead
            remedy = f"{word.theirs} {told}"
            return ConfigurationError("strategy", "must be a name of `paceline strategies`", name, remedy)
    return None


def _squeezed(name: str) -> str:
    """A name without what people write in different ways: `MirroredStrategy` and `mirrored` are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower().rpartition(".")[2]).removesuffix("strategy")
