"""The cases of the conformance suite: variants of strategies, and tasks. Strategies of the table are included
automatically."""

import zlib

import pytest

from paceline.strategies import STRATEGIES
from paceline.testing.reference import STEPS, single, train_plainly
from paceline.testing.tasks import CASES, OPTIMIZERS, WORKERS, in_turn, make_task

__all__ = [
    "ASYNCHRONOUS",
    "CASES",
    "CUT",
    "IN_PIECES",
    "LINEAR",
    "LOCAL",
    "MESHES",
    "OPTIMIZERS",
    "PARTING_SEQUENCES",
    "PASSING_MESSAGES",
    "REPRODUCIBLE",
    "SHARING_MEMORY",
    "SPECS",
    "STEPPED",
    "STEPS",
    "SYNCHRONOUS",
    "UNCUT",
    "VARIANTS",
    "WHOLE",
    "WORKERS",
    "in_turn",
    "make_task",
    "one_in",
    "single",
    "train_plainly",
]

VARIANTS = {
    "all-reduce": [
        "all-reduce:algorithm=ring",
        "all-reduce:algorithm=ring,bucket_mb=0.0001",  # a bucket or two for each layer
        "all-reduce:algorithm=shared",
    ],
    "sync": ["sync", "sync:servers=2", "sync:placement=worker", "sync:placement=all"],
    "decentralized": [
        "decentralized",
        "decentralized:topology=one-peer-exponential,overlap=no",
        "decentralized:order=adapt-then-combine",
        "decentralized:mode=async",
    ],
    "local-sgd": [
        "local-sgd:period=2",
        "local-sgd:period=3,averages=parameters+momentum,post_local=1",
    ],
    "diloco": ["diloco:period=2", "diloco:period=3,fragments=2,delay=2,mix=0.5"],
    "pipeline": [
        "pipeline",
        "pipeline:order=gpipe,microbatches=3",
        "pipeline:order=interleaved,chunks=2,microbatches=4",
        "pipeline:order=zb-h1,microbatches=5",
        "pipeline:order=zb-h2,microbatches=4",
    ],
    "zero": [
        "zero:stage=1",
        "zero:stage=2",
        "zero:stage=3,segments=2,microbatches=2",
        "zero:stage=3,segments=3,hooks=true",
    ],
    "hybrid": ["hybrid:zero=1,microbatches=2"],
    "fedavg": ["fedavg", "fedavg:epochs=2,batch=3,fraction=0.5,dropout=0.2"],
}
"""Variants of strategies in which a parameter selects another code path."""

ASYNCHRONOUS = frozenset({"k-sync", "k-batch-sync", "async", "k-async", "k-batch-async", "ssp", "hogwild"})
"""Strategies with weights that depend on which worker is quicker. Tests of the weights of `single` leave them out."""

LOCAL = frozenset({"decentralized", "local-sgd", "diloco", "fedavg", "fedprox", "fedavgm", "fedadam"})
"""Strategies in which each worker temporarily has its own weights. They differ from `single`, but are equal in
every world."""

IN_PIECES = frozenset({"layers", "pipeline", "tensor", "zero", "hybrid"})
"""Strategies that compute the model in segments (`zero` does not in stage 1 and with hooks). They also give the
weights of `single`. But a custom training step cannot be cut, BatchNorm normalises micro-batches, and a model
with control flow that depends on data cannot be traced."""

SPECS = [spec for name in STRATEGIES for spec in VARIANTS.get(name, [name])]
SYNCHRONOUS = [spec for spec in SPECS if spec.partition(":")[0] not in ASYNCHRONOUS | LOCAL | {"single"}]
SYNCHRONOUS.append("local-sgd:post_local=99,algorithm=ring")
CUT = [
    spec
    for spec in SPECS
    if spec.partition(":")[0] in IN_PIECES and spec != "zero:stage=1" and "hooks" not in spec
]
"""Strategies that compute the model in segments."""
WHOLE = [spec for spec in SYNCHRONOUS if spec not in CUT]
"""Synchronous strategies in which each worker computes the whole model."""
STEPPED = [spec for spec in SYNCHRONOUS if spec not in CUT or spec.startswith("zero")]
"""Synchronous strategies that run a custom training step."""
REPRODUCIBLE = SYNCHRONOUS + [
    spec for spec in SPECS if spec.partition(":")[0] in LOCAL and "mode=async" not in spec
]
"""Strategies with weights that depend only on the task and the seed."""
UNCUT = [spec for spec in REPRODUCIBLE if spec not in CUT]
"""The reproducible strategies in which each worker computes the whole model."""

MESHES = [("hybrid:pipeline=2,zero=2,microbatches=3", 4), ("hybrid:pipeline=2,zero=3,microbatches=2", 6)]
"""Mesh strategies that need a certain number of workers, with this number."""

SHARING_MEMORY = ("all-reduce:algorithm=shared", "hogwild")
"""Strategies for ranks of one host only."""
PASSING_MESSAGES = [spec for spec in SPECS if spec not in SHARING_MEMORY]

PARTING_SEQUENCES = [
    "tensor:size=2,sequence=true",
    "hybrid:tensor=2,sequence=true,microbatches=2",
    "hybrid:pipeline=2,tensor=2,sequence=true,microbatches=2",
    "hybrid:pipeline=2,tensor=2,sequence=true,order=zb-h1,zero=1,microbatches=3",
    "hybrid:tensor=2,sequence=true,zero=2,microbatches=2",
    "hybrid:tensor=2,sequence=true,zero=3,microbatches=2",
]
"""Variants for models of sequences. The models of the suite have no sequences: see `test_sequences.py`."""

LINEAR = [
    "local-sgd:period=1",
    "local-sgd:period=1,averages=parameters+momentum",
    "diloco:period=1,outer_lr=1,outer_momentum=0",
    "decentralized:topology=complete,weights=uniform,order=adapt-then-combine",
]
"""Averages after every step: the weights of `single`, if an update is linear in its gradient."""


def one_in(few, cases):
    """Leave one in `few` cases to `make test`, a third of the others to `make test-all`, and the rest to `make
    test-every`.

    If `few` and the length of an axis have no common divisor, `make test` has every value of that axis. The third is
    drawn by a checksum of the case, so it favours no value of an axis, and new cases do not change it.
    """
    return [_marked(case, n % few == 0) for n, case in enumerate(cases)]


def _marked(case, is_quick):
    name = "-".join(map(str, case))
    marks = [] if is_quick else [pytest.mark.slow]
    if not is_quick and zlib.crc32(name.encode()) % 3:
        marks.append(pytest.mark.exhaustive)
    return pytest.param(*case, marks=marks, id=name)
