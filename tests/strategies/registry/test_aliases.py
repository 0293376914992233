"""Names of other systems: aliases if we have an equivalent, otherwise errors with an explanation."""

import pickle
import re

import pytest
from refusals import has, refused
from tasks import a_task, simulated

import paceline as pl
from paceline.errors import UnknownNameError
from paceline.strategies import ALIASES, STRATEGIES, parse, register, spell
from paceline.strategies.registry.aliases import OTHER_SYSTEMS, answer

LACKING = [name for word in OTHER_SYSTEMS if not word.is_alias for name in word.names]

ASKED_FOR = [
    "one-device",
    "mirrored",
    "multi-worker-mirrored",
    "central-storage",
    "parameter-server",
    "tpu",
    "data-parallel",
    "ddp",
    "fsdp",
    "horovod",
    "zero-3",
    "deepspeed",
    "megatron",
    "pmap",
    "pjit",
    "alpa",
    "pathways",
    "ray-train",
    "flower",
]


def test_all_systems_that_people_come_from_are_in_the_table():
    assert set(ASKED_FOR) <= {name for word in OTHER_SYSTEMS for name in word.names}


def test_a_name_stands_in_one_row():
    names = [name for word in OTHER_SYSTEMS for name in word.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_is_the_strategy_itself(name):
    ours, _, options = ALIASES[name].partition(":")
    assert type(parse(name)) is STRATEGIES[ours]
    assert parse(name) == parse(ALIASES[name])
    assert spell(f"{name}:x=1") == f"{ours}:{options}{',' if options else ''}x=1"


def test_an_alias_with_options_takes_more():
    assert parse("pipedream:stages=2") == parse("pipeline:order=pipedream,stages=2")
    with refused("pipeline:order", bound=has("once")):
        parse("pipedream:order=1f1b")


def test_parameters_of_ours_go_with_their_word():
    assert parse("horovod:algorithm=ring") == parse("all-reduce:algorithm=ring")


def test_a_run_is_recorded_under_our_word():
    run = pl.train(a_task(), "ddp:algorithm=ring", simulated(2), steps=1)
    assert run.strategy == "all-reduce:algorithm=ring"


def test_two_words_for_one_strategy_are_not_compared():
    with refused("strategies", "all-reduce"):
        pl.compare(a_task(), "ddp,all-reduce", simulated(2), steps=1)


@pytest.mark.parametrize("name", LACKING)
def test_a_word_for_what_is_not_here_is_answered_with_what_to_write(name):
    assert name not in STRATEGIES, "it is here now: move its row, or take it out"
    with refused("strategy", name) as refusal:
        parse(f"{name}:stage=3")
    (word,) = (word for word in OTHER_SYSTEMS if name in word.names)
    assert refusal.value.remedy == f"{word.theirs} {word.instead}"


@pytest.mark.parametrize(
    "word", [word for word in OTHER_SYSTEMS if not word.is_alias], ids=lambda word: word.theirs
)
def test_every_answer_names_something_that_is_here(word):
    told = re.findall(r"[a-z]+(?:-[a-z]+)*(?::[a-z]+=[a-z]+)?", word.instead)
    assert [
        name for name in told if name.partition(":")[0] in STRATEGIES
    ] or "paceline compare" in word.instead
    for spec in (name for name in told if ":" in name):
        parse(spec)


@pytest.mark.parametrize(
    ("spelt", "ours"),
    [
        ("DDP", "all-reduce"),
        ("MirroredStrategy", "all-reduce"),
        ("tf.distribute.OneDeviceStrategy", "single"),
        ("torch.nn.DataParallel", "map-reduce"),
        ("parameter_server", "async"),
        ("FSDP", "zero"),
        ("ZeRO-3", "zero"),
    ],
)
def test_other_spellings_are_answered_with_our_word(spelt, ours):
    assert f"is {ours} here: write that" in answer(spelt).remedy


@pytest.mark.parametrize("spelt", ["ZeRO-2", "TPUStrategy", "Ray Train"])
def test_other_spellings_of_what_is_not_here_are_answered_too(spelt):
    assert answer(spelt).remedy.endswith(tuple(word.instead for word in OTHER_SYSTEMS if not word.is_alias))


def test_what_nobody_knows_has_no_answer():
    assert answer("k-sink") is None


def test_a_strategy_of_another_package_may_have_such_a_word(monkeypatch):
    monkeypatch.setattr("paceline.strategies.registry.table.STRATEGIES", dict(STRATEGIES))
    register("zero-1", STRATEGIES["single"])
    assert type(parse("zero-1")) is STRATEGIES["single"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("allreduce", "all-reduce"),
        ("AllReduce", "all-reduce"),
        ("pipelin", "pipeline"),
        ("mirored", "mirrored"),
    ],
)
def test_a_name_with_a_slip_is_answered_with_the_nearest(written, meant):
    with pytest.raises(UnknownNameError) as caught:
        parse(written)
    assert caught.value.nearest == meant
    assert set(caught.value.valid) == set(STRATEGIES)
    assert pickle.loads(pickle.dumps(caught.value)).nearest == meant
