"""Examples with a custom training step learn."""

import importlib.util
import math
import re
from pathlib import Path

import pytest
import torch
from tasks import simulated

import paceline as pl

EXAMPLES = Path(__file__).parents[1] / "examples"


def imported(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gan_trains_both_models_and_measures_the_generator():
    task = pl.load_task(EXAMPLES / "gan.py")
    run = pl.train(task, "all-reduce", simulated(2), steps=40, evaluate_every=20)
    assert [set(record.extra) for record in run.history[:2]] == [{"d_loss"}, {"g_loss"}]
    assert 0 <= run.metric <= 1
    assert 0 <= run.last("spots found") <= 8
    assert run.history[-2].loss < run.history[0].loss  # the discriminator has learned something


def test_a_buffer_is_data_and_its_target_network_stays_as_it_is():
    example = imported("replay_buffer")
    torch.manual_seed(0)
    q, chance = example.network(), example.random.Random(0)
    buffer = [seen for _ in range(5) for seen in example.play(q, chance, explore=1.0)]
    run = example.train(q, buffer, 0, simulated(2))
    before, target, learned = (each.state_dict() for each in (q, run.model["target"], run.model["q"]))
    assert all(torch.equal(before[name], target[name]) for name in before)
    assert not torch.equal(before["0.weight"], learned["0.weight"])
    assert math.isfinite(run.last("value"))


@pytest.mark.slow
def test_the_replay_example_comes_to_its_end(capsys):
    assert 8 <= imported("replay_buffer").main(rounds=2) <= 40
    assert "round 2" in capsys.readouterr().out


def test_a_hugging_face_model_goes_in_as_it_is():
    pytest.importorskip("transformers")
    task = pl.load_task(EXAMPLES / "text_classifier.py")
    run = pl.train(task, "all-reduce", simulated(2), steps=12, evaluate_every=6)
    assert run.history[-1].loss < run.history[0].loss
    assert 0 <= run.metric <= 1


@pytest.mark.slow
def test_the_pipeline_example_shows_smaller_bubbles_and_learns(capsys):
    imported("transformer_pipeline").main(steps=4)
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if "%" in line]
    bubbles = {line.split()[0]: float(line.split("%")[0].split()[-1]) for line in lines}
    assert bubbles["zb-h2"] < bubbles["zb-h1"] < bubbles["1f1b"]
    assert bubbles["interleaved,chunks=2"] < bubbles["1f1b"]
    assert "two processes: loss" in printed


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the example reads how much memory it has there"
)
def test_a_model_too_big_for_one_worker_is_trained_by_those_that_share_it(capsys):
    imported("too_big_for_one").main(steps=2)
    _, whole, *shared = capsys.readouterr().out.splitlines()
    assert re.search(
        r"all-reduce:algorithm=ring: rank \d is out of memory in step 0: could not allocate \S+ MiB", whole
    )
    assert [line.partition(" to ")[0].rpartition(" ")[0] for line in shared] == [
        "zero:stage=3: loss",
        "pipeline: loss",
    ]


def test_the_example_of_175_billion_parameters_prints_a_line_for_each_mesh(capsys):
    example = imported("gpt_175b")
    specs = (
        "pipeline:stages=4,microbatches=8,order=zb-h1",
        "hybrid:data=2,pipeline=2,tensor=2,microbatches=4",
    )
    assert [example.workers_of(spec) for spec in specs] == [4, 8]
    assert [example.workers_of(spec) for spec in example.MESHES] == [1024] * 3
    example.main(layers=4, hidden=256, heads=4, batch=8, specs=specs)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(specs)
    reached = [float(line.split()[-1]) for line in lines[1:]]
    assert all(0 < each < 156 for each in reached)  # half of an A100's peak


@pytest.mark.slow
def test_large_batches_print_a_table_and_draw_a_plot(tmp_path, capsys):
    plot, example = tmp_path / "batches.html", imported("large_batch")
    example.main(["--epochs", "2", "--seeds", "1", "--plot", str(plot)])
    rows = [line for line in capsys.readouterr().out.splitlines() if "%" in line]
    shown = [[float(each) for each in re.findall(r"([\d.]+)%", row)] for row in rows]
    assert all(row.startswith(method) for row, method in zip(rows, example.METHODS, strict=True))
    assert {row[0] for row in shown} == {shown[0][0]}
    assert shown[0][0] > 80
    assert all(row[0] > max(row[1:]) for row in shown)  # two epochs are too few updates for large batches
    assert "LARS, warm-up" in plot.read_text()
