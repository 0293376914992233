"""`--ray [ADDRESS]` and `--spark [MASTER]`."""

import json
import sys

import pytest
from clusters.ray_hosts import needs_ray, on_the_hosts
from typer.testing import CliRunner

from paceline.cli import app
from paceline.cli.optional_values import _joined

TASK = """
import paceline as pl, torch
from torch import nn
task = pl.Task(model=lambda: nn.Linear(4, 1), data=(torch.ones(16, 4), torch.zeros(16, 1)), batch_size=8,
               loss=nn.functional.mse_loss, optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
"""


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["task.py", "--ray"], ["task.py", "--ray="]),
        (["--ray", "task.py"], ["--ray=", "task.py"]),
        (["--ray", "task.py:make", "--workers", "2"], ["--ray=", "task.py:make", "--workers", "2"]),
        (["--ray", "--json", "task.py"], ["--ray=", "--json", "task.py"]),
        (["task.py", "--ray", "auto"], ["task.py", "--ray=auto"]),
        (["--ray", "head:6379", "task.py"], ["--ray=head:6379", "task.py"]),
        (["--ray=head:6379", "task.py"], ["--ray=head:6379", "task.py"]),
        (["task.py"], ["task.py"]),
        (["--spark", "local-cluster[2,1,1024]", "task.py"], ["--spark=local-cluster[2,1,1024]", "task.py"]),
        (["task.py", "--spark", "--ray", "auto"], ["task.py", "--spark=", "--ray=auto"]),
    ],
)
def test_the_word_after_it_is_its_address_unless_it_is_an_option_or_the_task(words, read):
    assert list(_joined(words)) == read


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ray", "--simulate"], "--ray excludes --simulate"),
        (["--ray", "--link", "tcp"], "--ray excludes --link"),
        (["--ray", "auto", "--bandwidth", "1Gbps"], "--ray excludes --bandwidth"),
        (["--ray", "auto", "--compute", "const:1ms"], "--ray excludes --compute"),
        (["--no-encrypt"], "--no-encrypt needs --link tcp, --ray or --spark"),
        (["--ray", "nonsense"], 'address must be None, "auto" or "host:port", but got \'nonsense\''),
        (["--ray", "ray://head:10001"], "address must be"),
        (["--spark", "--simulate"], "--spark excludes --simulate"),
        (["--spark", "local[4]", "--link", "tcp"], "--spark excludes --link"),
        (["--spark", "--ray"], "--spark excludes --ray"),
    ],
)
def test_words_that_do_not_fit_are_refused(words, message):
    done = CliRunner().invoke(app, ["train", "task.py", *words])
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.slow
@needs_ray
@on_the_hosts
def test_a_task_is_trained_on_a_cluster_from_the_command_line(hosts):
    files = hosts.folder / "task.py"
    host = hosts.hosts[0]
    host.run("sh", "-c", f"cat > {files} <<'END'\n{TASK}\nEND")
    words = ["train", str(files), "--ray", "auto", "--workers", "2", "--no-encrypt", "--steps", "3", "--json"]
    code = "from paceline.cli import main; main()"
    printed = host.run(sys.executable, "-c", code, *words, "--quiet", env=hosts.env, timeout_s=180)
    figures = json.loads(printed)
    assert figures["cluster"] == "2 workers on Ray (auto), not encrypted"
    assert figures["steps"] == 3


def test_words_after_the_script_belong_to_the_script(monkeypatch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    given = []
    monkeypatch.setattr("paceline.cli.run._run", lambda *words: given.append(words) or 0)
    done = CliRunner().invoke(app, ["run", "--ray", str(script), "--ray", "mine", "--link", "thin"])
    assert done.exit_code == 0, done.output
    command, workers, settings, ray = given[0]
    assert command == [str(script), "--ray", "mine", "--link", "thin"]
    assert (workers, settings.link, ray) == (4, "shared-memory", "")
