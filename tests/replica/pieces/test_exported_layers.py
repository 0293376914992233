import torch
from torch import nn

import paceline as pl
from paceline.replica.pieces.exported_layers import export_layers
from paceline.replica.pieces.parts import Arguments


def computed(found, x):
    """The model's output, by the graphs of its layers and the parameters of each."""
    for _, layer, exported in found:
        state = [exported.fetcher(layer, node)() for node in exported.state]
        (x,) = exported.graph_module(*state, x)
    return x


def test_equal_layers_share_one_graph_and_keep_their_own_parameters():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 3)), nn.Linear(3, 2))
    found = export_layers(model, Arguments((torch.zeros(5, 3),), {}), 5)
    assert [each.name for each in found] == ["0", "1.0", "1.1", "2"]
    assert found[0].exported is found[2].exported
    assert found[0].exported is not found[3].exported
    x = torch.randn(7, 3)  # of another size than it was traced with
    torch.testing.assert_close(computed(found, x), model(x))


def test_a_deep_gpt_has_four_graphs_however_many_blocks_it_has():
    tokens = torch.zeros(5, 8, dtype=torch.int64, device="meta")
    found = export_layers(pl.models.GPT(12, 16, 2, 8, 10, 3).model, Arguments((tokens,), {}), 5)
    assert len(found) == 12 + 3
    assert len({id(each.exported) for each in found}) == 4


def test_statistics_of_batch_norm_stay_as_they_are():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    export_layers(model, Arguments((torch.zeros(5, 3),), {}), 5)
    assert model[1].num_batches_tracked == 0
