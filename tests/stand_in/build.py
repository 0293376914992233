"""Builds the stand-in device: one file, so that the compiler alone will do."""

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")


def reason_not_to_build():
    """Why it cannot be built here; empty if it can."""
    if shutil.which("g++") is None:
        return "no C++ compiler (g++) to build the stand-in device with"
    return "" if (_torch() / "include" / "ATen").is_dir() else "torch was installed without its headers"


def build(folder):
    """The library, made in a folder."""
    library = folder / "libstandin.so"
    # No optimisation, because it doubles the build time and the tests do not depend on it.
    options = ["-std=c++20", "-O0", "-fPIC", "-shared", f"-I{_torch() / 'include'}", f"-L{_torch() / 'lib'}"]
    command = ["g++", *options, str(SOURCE), "-o", str(library), "-ltorch_cpu", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def _torch():
    return Path(find_spec("torch").origin).parent
