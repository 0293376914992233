import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PATIENCE_S
from refusals import has
from typer.testing import CliRunner

from paceline.cli import app

TASK = """
import torch
import paceline as pl
numbers = torch.arange(240)
def task_of(targets):
    return pl.Task(model=torch.nn.Linear(1, 3), data=(numbers.float()[:, None], targets),
        loss=torch.nn.functional.cross_entropy, optimizer=torch.optim.SGD, batch_size=8)
labelled = task_of(numbers % 3)
many = task_of(numbers % 24)
measured = task_of(numbers.float())
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "three.py"
    path.write_text(TASK)
    return path


def invoke(file, name, *words):
    return CliRunner().invoke(app, ["partition", f"{file}:{name}", *words])


def test_it_prints_clients_by_labels_and_their_skew(file):
    result = invoke(file, "labelled", "--clients", "4", "--partition", "shards")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["client", "samples", "0", "1", "2", "labels", "distance"]
    rows = [line.split() for line in lines[1:5]]
    assert [row[:2] for row in rows] == [[str(client), "60"] for client in range(4)]
    assert lines[6] == "partition  shards, 2 shards a client"
    assert lines[7] == "samples    240; 60 to 60 per client, 60.0 on average"
    assert lines[8].startswith("skew       0.")


def test_json_has_the_figures_of_every_client_and_nothing_else_is_on_stdout(file):
    words = ("--clients", "60", "--partition", "dirichlet", "--alpha", "0.3", "--allow-empty", "--json")
    result = invoke(file, "labelled", *words)
    figures = json.loads(result.stdout)
    assert figures["clients"] == len(figures["counts"]) == 60
    assert figures["samples"] == sum(map(sum, figures["counts"])) == 240
    assert figures["labels"] == [0, 1, 2]
    assert figures["empty"]


def test_it_shows_what_the_strategies_do(file):
    import numpy as np

    from paceline.strategies import parse

    words = ("--clients", "5", "--partition", "dirichlet", "--alpha", "0.7", "--seed", "3", "--json")
    counts = json.loads(invoke(file, "labelled", *words).stdout)["counts"]
    strategy = parse("fedprox:partition=dirichlet,alpha=0.7,partition_seed=3")
    targets = np.arange(240) % 3
    parts = strategy.make_partition().parts(targets, 5)
    assert counts == [np.bincount(targets[part], minlength=3).tolist() for part in parts]


def test_more_skew_is_told_for_a_smaller_alpha(file):
    skews = []
    for alpha in ("0.05", "1", "100"):
        words = ("--clients", "5", "--partition", "dirichlet", "--alpha", alpha, "--allow-empty", "--json")
        skews.append(json.loads(invoke(file, "labelled", *words).stdout)["skew"])
    assert skews == sorted(skews, reverse=True)


def test_data_without_labels_has_samples_alone(file):
    result = invoke(file, "measured", "--clients", "7")
    assert result.stdout.splitlines()[0].split() == ["client", "samples"]
    assert "skew" not in result.stdout


def test_long_tables_are_cut_and_say_so(file):
    result = invoke(file, "many", "--clients", "80")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["client", "samples", "labels", "distance"], "too many labels for columns"
    assert lines[51] == "… and 30 more clients; --json lists all"


def test_the_picture_is_written_as_svg(file, tmp_path):
    path = tmp_path / "parts.svg"
    result = invoke(file, "labelled", "--clients", "4", "--plot", str(path))
    assert result.exit_code == 0, result.stderr
    assert "three: 240 samples, 4 clients" in path.read_text()


@pytest.mark.parametrize(
    ("name", "words", "facts"),
    [
        ("labelled", ("--clients", "0"), has("--clients", "1", "0")),
        ("labelled", ("--partition", "shard"), has("'shards'")),
        ("labelled", ("--partition", "dirichlet", "--alpha", "0"), has("alpha", "0")),
        ("labelled", ("--shards-per-client", "0"), has("shards_per_client", "1")),
        ("labelled", ("--seed", "-1"), has("partition_seed", "0")),
        ("labelled", ("--clients", "241"), has("client 240")),
        ("measured", ("--partition", "shards"), has("partition", "float32", "iid")),
        ("labelled", ("--plot", "parts.png"), has("--plot", ".svg", "parts.png")),
        ("labelled", ("--plot", "/nowhere/parts.svg"), has("--plot")),
        ("nothing", (), has("name")),
    ],
)
def test_a_word_that_cannot_be_right_is_refused_with_exit_code_2(file, name, words, facts):
    result = invoke(file, name, *words)
    assert facts == result.stderr
    assert result.stdout == ""
    assert result.exit_code == 2


def test_a_picture_of_more_clients_than_can_be_read_is_refused(file, tmp_path):
    words = ("--clients", "1001", "--allow-empty", "--plot", str(tmp_path / "parts.svg"))
    result = invoke(file, "labelled", *words)
    assert "can show at most 1,000 clients" in result.stderr
    assert result.exit_code == 2


def test_words_that_do_not_fit_are_refused_before_torch_is_imported():
    program = (
        "import sys\nfrom paceline.cli import app\n"
        "try: app(['partition', 'x.py', '--alpha', '-1'])\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout == "False\n"
    assert "alpha must be finite" in done.stderr


@pytest.mark.slow
def test_the_digits_can_be_parted():
    digits = Path(__file__).parents[2] / "examples" / "digits.py"
    words = ["partition", str(digits), "--clients", "20", "--partition", "dirichlet", "--alpha", "0.3"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    assert "samples    1437" in result.stdout
