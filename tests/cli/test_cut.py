import json

import pytest
from pictures import read, texts
from typer.testing import CliRunner

from paceline.cli import app

TASK = """
import torch
import paceline as pl

def task_of(model):
    return pl.Task(model=model, data=(torch.randn(24, 4), torch.randn(24, 2)),
        loss=torch.nn.functional.mse_loss, optimizer=torch.optim.SGD, batch_size=8)

class Looking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)

chain = task_of(torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(5)], torch.nn.Linear(4, 2)))
looking = task_of(Looking())
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "cuts.py"
    path.write_text(TASK)
    return path


def invoke(file, name, *words):
    return CliRunner().invoke(app, ["cut", f"{file}:{name}", *words])


def test_it_prints_a_row_a_stage_and_a_drawing(file):
    result = invoke(file, "chain", "--stages", "3")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == [
        "stage",
        "layers",
        "parameters",
        "operations",
        "seconds",
        "bytes",
        "to",
        "next",
    ]
    assert [line.split()[0] for line in lines[1:4]] == ["0", "1", "2"]
    assert sum("█" in line for line in lines) == 3
    assert "up to 6 stages" in lines[-1]


def test_json_has_the_figures_and_nothing_else_is_on_stdout(file):
    figures = json.loads(invoke(file, "chain", "--cuts", "2+4", "--json").stdout)
    assert [stage["first"] for stage in figures["stages"]] == ["0", "2", "4"]
    assert figures["samples"] == 8


def test_a_picture_is_drawn(file, tmp_path):
    path = tmp_path / "stages.svg"
    assert invoke(file, "chain", "--plot", str(path)).exit_code == 0
    assert texts(read(path.read_text()))


@pytest.mark.parametrize(
    ("name", "words", "error"),
    [
        ("chain", ["--stages", "0"], "--stages must be at least 1"),
        ("chain", ["--stages", "9"], "must make 1 to 6 segments of this model, but got 9"),
        ("chain", ["--plot", "stages.png"], "--plot must end in .svg"),
        ("looking", [], "its own forward cannot be traced"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(file, name, words, error):
    result = invoke(file, name, *words)
    assert result.exit_code == 2
    assert error in " ".join(result.stderr.split())


def test_layers_split_by_tensor_are_listed(file):
    found = json.loads(invoke(file, "chain", "--tensor", "2", "--json").stdout)
    assert found["size"] == 2
    assert set(found["split"]) | set(found["whole"]) == {"0", "1", "2", "3", "4", "5"}
