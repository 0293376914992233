import importlib.util
import math

import pytest
from refusals import has, raised, refused
from tasks import a_task, samples, simulated

import paceline as pl
from paceline.callbacks.loggers import MLflow, TensorBoard, WandB, figures
from paceline.runs.run import Record


def train(callback, steps=4):
    task = a_task(test=samples(), metric=lambda outputs, targets: 0.5)
    return pl.train(task, "single", simulated(1), steps=steps, evaluate_every=2, callbacks=[callback])


def test_the_figures_of_a_record_are_those_that_are_finite():
    record = Record(3, 2.0, math.nan, None, 8, 100, {"consensus": 0.5, "bad": math.inf})
    assert figures(record) == {"bytes": 100, "consensus": 0.5, "samples_per_s": 4.0}


@pytest.mark.parametrize(
    ("make", "package"),
    [(lambda: TensorBoard("x"), "tensorboard"), (WandB, "wandb"), (MLflow, "mlflow")],
)
def test_a_package_that_is_missing_is_named_at_once(make, package):
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    with refused("callbacks", bound=has(package), remedy=has(f"pip install {package}")):
        make()


def test_tensorboard_gets_every_step(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(TensorBoard(tmp_path))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("run/loss")] == [1, 2, 3, 4]
    assert [event.step for event in events.Scalars("run/metric")] == [2, 4]


def test_weights_and_biases_get_every_step_without_a_server(tmp_path):
    pytest.importorskip("wandb")
    train(WandB(mode="offline", dir=str(tmp_path), project="paceline-test"))
    [folder] = tmp_path.glob("wandb/offline-run-*")
    [log] = folder.glob("run-*.wandb")
    assert b"samples_per_s" in log.read_bytes()


def test_mlflow_gets_every_step_without_a_server(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    train(MLflow(run_name="tried"))
    [run] = mlflow.search_runs(output_format="list")
    assert run.info.status == "FINISHED"
    points = mlflow.tracking.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in points] == [1, 2, 3, 4]


def test_a_logger_is_closed_where_the_run_fails():
    ended = []

    class Logger:
        def on_step(self, record):
            raise RuntimeError("the disk is full")

        def on_end(self, run):
            ended.append(run)

    with raised(RuntimeError, "the disk is full"):
        train(Logger())
    assert ended == [None]
