"""The journal of a rank survives its death, except for an incomplete last line."""

import math
import os

import numpy as np
import torch

from paceline.clusters.base.news import read_news
from paceline.clusters.process.journal import Journal


def test_what_was_written_is_read_but_for_a_line_that_was_cut_off():
    journal = Journal.create(3)
    child = os.fork()
    if not child:
        journal.write({"updates": [{"step": 1, "loss": math.nan, "extra": {}}]})
        journal.write({"updates": [{"step": 2, "loss": 0.5, "extra": {"accuracy": 1.0}}]})
        os.write(journal.fd, b'{"updates": [{"st')
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    first, second = map(read_news, journal.read())
    journal.close()
    assert math.isnan(first["updates"][0]["loss"])
    assert second == {"updates": [{"step": 2, "loss": 0.5, "extra": {"accuracy": 1.0}}]}


def test_numbers_of_numpy_and_torch_become_plain():
    journal = Journal.create(0)
    journal.write({"losses": [(np.int64(3), np.float32(0.5), torch.tensor(4))]})
    assert list(map(read_news, journal.read())) == [{"losses": [[3, 0.5, 4]]}]
    journal.close()
