import pytest
import typer

from paceline.cli.failures import exit_codes
from paceline.errors import ConfigurationError, DeadlockError, PeerLost, TaskError, UnknownNameError


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            ConfigurationError("workers", "must be at least 1", 0, "give more"),
            2,
            "workers must be at least 1",
        ),
        (UnknownNameError("strategy", "singel", ["single"]), 2, "did you mean 'single'"),
        (TaskError("the model could not be built", "ValueError: no"), 1, "the model could not be built"),
        (PeerLost(3, "killed"), 1, "rank 3 is lost (killed)"),
        (DeadlockError(["rank 0 waits for rank 1"]), 1, "rank 0 waits for rank 1"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_each_failure_has_its_exit_code_and_message(capsys, error, code, message):
    with pytest.raises(typer.Exit) as caught, exit_codes():
        raise error
    assert caught.value.exit_code == code
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""


def test_a_task_that_cannot_be_loaded_counts_as_refused():
    with pytest.raises(typer.Exit) as caught, exit_codes(), exit_codes(failure=2):
        raise TaskError("broken", "ValueError: no")
    assert caught.value.exit_code == 2


def test_a_note_on_an_error_is_printed_with_it(capsys):
    error = ConfigurationError("batch_size", "must be at least 1", 0)
    error.add_note("in task.py, line 3")
    with pytest.raises(typer.Exit), exit_codes():
        raise error
    assert capsys.readouterr().err.splitlines()[1] == "in task.py, line 3"


def test_an_error_that_is_a_defect_of_ours_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), exit_codes():
        _ = 1 / 0
