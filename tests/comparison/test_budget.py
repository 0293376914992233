import pytest
from tasks import a_task, samples

from paceline.comparison.budget import batches_per_step
from paceline.errors import TaskError


@pytest.mark.parametrize(
    ("strategy", "batches"),
    [
        ("single", 1.0),
        ("all-reduce", 1.0),
        ("sync", 1.0),
        ("k-sync:k=3", 3 / 4),
        ("async", 1 / 4),
        ("k-batch-async:k=2", 2 / 4),
        ("hogwild", 1 / 4),
    ],
)
def test_a_step_takes_the_part_of_a_batch_that_its_strategy_gives_it(strategy, batches):
    assert batches_per_step(a_task(), strategy, 4) == pytest.approx(batches)


def test_a_smaller_last_batch_of_an_epoch_is_no_other_strategy():
    assert batches_per_step(a_task(data=samples(23)), "all-reduce", 4) == 1.0


def test_what_cannot_be_simulated_is_taken_to_need_a_whole_batch():
    assert batches_per_step(a_task(), "all-reduce:algorithm=native", 4) == 1.0


def test_a_task_that_cannot_be_built_is_not_passed_over():
    def broken():
        raise KeyError("model")

    with pytest.raises(TaskError, match="KeyError"):
        batches_per_step(a_task(model=broken), "all-reduce", 4)
