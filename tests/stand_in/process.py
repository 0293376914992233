"""A process that has the stand-in device. Nothing of torch is imported here before that is set up."""

import contextlib
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import cloudpickle

PATIENCE_S = 600.0  # a busy machine is slow: that proves nothing


@contextlib.contextmanager
def device_process(folder, library):
    """A function that runs another one, with its arguments, in a process that has the device."""
    info = folder / "stand_in-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stand_in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nstandin = stand_in.device:autoload\n")
    given = (str(folder), str(library))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_begin, initargs=given) as pool:

        def run(function, *arguments):
            work = cloudpickle.dumps((function, arguments))
            return cloudpickle.loads(pool.submit(_run, work).result(PATIENCE_S))

        yield run


def _begin(folder, library):
    sys.path.insert(0, folder)
    os.environ["PACELINE_STAND_IN"] = library


def _run(work):
    function, arguments = cloudpickle.loads(work)
    return cloudpickle.dumps(function(*arguments))
