import pytest
import torch
from tasks import a_task, samples
from torch import nn

from paceline.checking.findings import caveats


def found(workers=4, targets=None, **changes):
    task = a_task(**changes)
    labels = torch.zeros(8, dtype=torch.int64) if targets is None else targets
    told = caveats(task, task.build_model(0), labels, batch_size=task.batch_size, workers=workers)
    return {finding.strategies: finding.why for finding in told}


def stacked(*layers):
    return lambda: nn.Sequential(nn.Linear(4, 5), *layers, nn.Linear(5, 2)).double()


def test_a_plain_task_has_none():
    assert found() == {}


def test_a_batch_with_less_than_a_sample_a_worker_is_named():
    assert (
        "some of 9 workers get no samples from a batch of 8" in found(workers=9)["all with several workers"]
    )


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.BatchNorm1d(5), "layer 1 is a BatchNorm1d: it normalises each worker's slice separately"),
        (nn.Dropout(0.1), "layer 1 is a Dropout: each worker draws its own random numbers"),
    ],
)
def test_layers_that_mix_samples_or_draw_are_named_where_there_are_several_workers(layer, why):
    assert why in found(model=stacked(layer))["all with several workers"]
    assert found(model=stacked(layer), workers=1) == {}


def test_dropout_that_drops_nothing_is_none():
    assert found(model=stacked(nn.Dropout(0.0))) == {}


def test_clipping_is_not_the_batchs_where_an_update_is_of_some_workers():
    (strategies,) = found(clip_norm=1.0)
    assert (
        strategies
        == "all except single, map-reduce, all-reduce, sync, central-storage, layers, pipeline, tensor, zero and hybrid"
    )


def test_an_optimizer_that_is_not_known_to_work_by_element_is_named():
    class Own(torch.optim.SGD):
        pass

    (strategies,) = found(optimizer=lambda params: Own(params, lr=0.1))
    assert "k-sync" in strategies
    assert "all-reduce:algorithm=shared" in strategies


def test_targets_that_are_no_labels_cannot_be_parted_by_label():
    told = found(targets=samples()[1][:8])
    assert list(told) == ["fedavg, fedprox, fedavgm and fedadam"]


def test_an_embedding_that_changes_its_weights_is_named():
    model = stacked(nn.Embedding(16, 5, max_norm=1.0))
    assert "layer 1 is a Embedding with max_norm" in found(model=model)["all with several workers"]
