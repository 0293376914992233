"""The errors of Paceline: their tree, codes, fields and texts."""

import inspect
import pickle

import pytest
from refusals import raised

from paceline import errors
from paceline.errors import (
    ConfigurationError,
    DamagedError,
    DeadlineError,
    DeadlockError,
    EarlyEndError,
    FrameError,
    GradientNotFiniteError,
    LossNotFiniteError,
    MismatchError,
    OutOfMemoryError,
    PacelineError,
    PeerLost,
    RunError,
    SaveError,
    TaskError,
    UnknownNameError,
    WorkerError,
)
from paceline.schedules.collectives.matching import Position, ScheduleError
from paceline.testing.pipeline_orders import OrderError

TRACEBACK = "Traceback (most recent call last):\n  …\nLookupError: no such weights\n"

CODES = {
    "PL-000": PacelineError,
    "PL-010": ConfigurationError,
    "PL-011": UnknownNameError,
    "PL-012": DamagedError,
    "PL-020": TaskError,
    "PL-021": SaveError,
    "PL-030": RunError,
    "PL-031": WorkerError,
    "PL-032": OutOfMemoryError,
    "PL-033": LossNotFiniteError,
    "PL-034": GradientNotFiniteError,
    "PL-035": PeerLost,
    "PL-036": DeadlineError,
    "PL-037": DeadlockError,
    "PL-038": MismatchError,
    "PL-039": FrameError,
    "PL-040": ScheduleError,
    "PL-041": OrderError,
    "PL-042": EarlyEndError,
}

FIELDS = [
    (ConfigurationError("k", "must be at most 4", 9, "use 4"), ["argument", "bound", "value", "remedy"]),
    (UnknownNameError("order", "1f1", ["1f1b", "gpipe"]), ["argument", "value", "nearest"]),
    (DamagedError("/runs/x", "run.json", "it ends early"), ["folder", "file", "reason", "remedy"]),
    (TaskError("the model could not be built", TRACEBACK), ["failure", "cause"]),
    (SaveError(28, "No space left on device", "/runs/x"), ["filename", "strerror"]),
    (WorkerError(3, 7, TRACEBACK), ["rank", "step", "cause"]),
    (EarlyEndError(1, 4, 0, 5), ["rank", "steps", "waiting", "waiting_steps"]),
    (OutOfMemoryError(3, 7, TRACEBACK, "3 GB"), ["rank", "step", "cause", "wanted"]),
    (LossNotFiniteError(3, 7, float("inf"), "all targets are -100"), ["rank", "step", "loss", "cause"]),
    (GradientNotFiniteError(3, 7, "up.weight"), ["rank", "step", "parameter"]),
    (PeerLost(3, "killed by SIGKILL", "rank 0 was waiting"), ["rank", "reason", "waiting"]),
    (
        DeadlineError(1, "receive", "rank 3", 0.5, "rank 3 is stopped"),
        ["rank", "operation", "awaited", "culprit", "view"],
    ),
    (DeadlockError(["rank 0 waits", "rank 1 waits"]), []),
    (MismatchError(0, "float32[5]", 1, "float32[3]"), ["sender", "sent", "receiver", "expected"]),
    (ScheduleError(Position(1, 2, 0), None, "waits", "deadlock"), ["rank", "round", "problem"]),
    (OrderError(1, None, "is done twice", "twice"), ["rank", "problem"]),
]
EVERY = pytest.mark.parametrize(
    ("error", "fields"), FIELDS, ids=[type(error).__name__ for error, _ in FIELDS]
)


def test_each_error_has_a_code_of_its_own_that_does_not_change():
    public = {
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, PacelineError)
    }
    assert public <= set(CODES.values())
    assert {kind.code: kind for kind in CODES.values()} == CODES


def test_the_tree_in_the_docstring_is_that_of_the_classes():
    above = []
    for line in errors.__doc__.split("\n\n")[1].splitlines()[:-1]:
        name = line.strip("│├└─ ").split()[0]
        depth = line.index(name) // 4
        assert getattr(errors, name).__mro__[1] is (above[depth - 1] if depth else Exception)
        above[depth:] = [getattr(errors, name)]


@EVERY
def test_the_text_names_every_field(error, fields):
    assert all(str(getattr(error, name)) in str(error) for name in fields)


@EVERY
def test_an_error_that_was_sent_to_another_process_is_the_same(error, fields):
    sent = pickle.loads(pickle.dumps(error))
    assert type(sent) is type(error)
    assert vars(sent) == vars(error)
    assert str(sent) == str(error)


def test_the_part_of_the_model_is_named_with_the_rank():
    error = PeerLost(1)
    error.holds = {1: "layers 4 … 7"}
    assert error.holds[1] in str(error)


def test_a_name_that_is_like_none_of_the_table_has_no_nearest():
    with raised(UnknownNameError, nearest=None, valid=("gpipe", "zb-h1")):
        raise UnknownNameError("order", "x", ["zb-h1", "gpipe"])


def test_of_many_waits_the_text_has_the_first_ones_and_the_number_of_the_others():
    error = DeadlockError(f"rank {rank} waits" for rank in range(25))
    assert len(error.waits) == 25
    with raised(DeadlockError, "rank 0", "rank 19", "5 more") as caught:
        raise error
    assert "rank 20" not in str(caught.value)
