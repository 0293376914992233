"""The installable package: it is built, installed into a separate environment, and used there."""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import paceline

TREE = Path(__file__).parents[1]
TASK = """
import torch
import paceline as pl


def task():
    inputs = torch.arange(32.0).reshape(16, 2) / 32
    return pl.Task(
        model=lambda: torch.nn.Linear(2, 1),
        data=(inputs, inputs.sum(1, keepdim=True)),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        batch_size=8,
    )
"""


def run(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=300, **options).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: building leaves folders behind."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(TREE / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TREE / name, tree / name)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tree / "dist"), str(tree))
    (built,) = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheel):
    """An environment with this wheel. Dependencies are those of the tests' environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    site = run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(site) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_the_wheel_is_what_is_used(environment, tmp_path):
    python = str(environment / "bin" / "python")
    where = run(python, "-I", "-c", "import paceline; print(paceline.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(environment)
    assert run(str(environment / "bin" / "paceline"), "--version").split()[1] == paceline.__version__


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_an_installed_wheel_trains_and_draws_a_report(environment, tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    command = str(environment / "bin" / "paceline")
    words = (command, "train", "task.py", "--strategy", "all-reduce", "--workers", "2", "--steps", "3")
    run(*words, "--out", "run", cwd=tmp_path)
    run(command, "report", "run", cwd=tmp_path)
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_the_wheel_needs_no_spark_and_says_what_to_install(environment, wheel, tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = (name for name in opened.namelist() if name.endswith("METADATA"))
        needed = [line for line in opened.read(metadata).decode().splitlines() if "pyspark" in line]
    assert needed
    assert all("extra" in line for line in needed)
    words = ["train", "task.py", "--spark", "--workers", "2", "--steps", "1"]
    program = f"import sys; sys.modules['pyspark'] = None; import paceline.cli; paceline.cli.app({words})"
    python = str(environment / "bin" / "python")
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([python, "-c", program], check=False, **options)
    assert done.returncode == 2
    assert "paceline[spark]" in done.stderr
