import itertools
import logging

import torch
from torch import nn

from paceline.model.cutting.exporting import export
from paceline.model.cutting.parts import Arguments
from paceline.model.cutting.progress import PERIOD_S, report_progress


def reports(caplog, clock):
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(6)))
    with caplog.at_level(logging.WARNING, "paceline"), report_progress(model, clock):
        model(torch.ones(3, 2))
    return [record.args for record in caplog.records]


def test_a_slow_trace_reports_the_layers_that_it_has_called(caplog):
    ticks = itertools.count(0.0, PERIOD_S / 3)
    found = reports(caplog, lambda: next(ticks))
    assert found
    assert all(name == "Sequential" and total == 7 for name, _, _, total in found)
    assert [count for _, count, _, _ in found] == sorted({count for _, count, _, _ in found})


def test_a_quick_trace_reports_nothing(caplog):
    assert reports(caplog, lambda: 0.0) == []


def test_a_trace_leaves_no_hook():
    hooks = dict(nn.modules.module._global_forward_pre_hooks)
    export(nn.Linear(2, 2), Arguments((torch.ones(3, 2),), {}), 3)
    assert nn.modules.module._global_forward_pre_hooks == hooks
