import pytest
import torch
from torch import nn

from paceline.model.activations import Activations, bytes_of, state_of


def counted(module, inputs):
    found = Activations(state_of(module))
    with found.counting():
        module(inputs)
    return found.nbytes


def test_of_a_layer_its_input_is_kept_and_its_weights_do_not_count():
    assert counted(nn.Linear(8, 4), torch.ones(5, 8)) == 5 * 8 * 4


def test_a_value_that_two_layers_keep_counts_once():
    assert (
        counted(nn.Sequential(nn.ReLU(), nn.Linear(8, 4)), torch.ones(5, 8, requires_grad=True)) == 5 * 8 * 4
    )


def test_statistics_of_batch_norm_do_not_count():
    layer = nn.BatchNorm1d(8)
    mean_and_deviation = 2 * 8 * 4
    assert counted(layer, torch.ones(5, 8)) == 5 * 8 * 4 + mean_and_deviation


def test_of_a_slice_of_all_data_only_the_slice_counts():
    data = torch.ones(1000, 8)
    assert counted(nn.Linear(8, 4), data[10:15]) == 5 * 8 * 4


def test_views_of_one_storage_count_at_most_as_much_as_the_storage():
    whole = torch.ones(6, 4)
    assert bytes_of([whole, whole[:3], whole[3:], whole.view(-1)]) == whole.nbytes


def test_shapes_without_data_count_as_much_as_data():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(16), nn.Linear(16, 2))
    with_data = counted(model, torch.ones(5, 8))
    assert counted(model.to("meta"), torch.ones(5, 8, device="meta")) == with_data


def test_a_value_that_is_changed_before_its_backward_is_noticed_while_counting():
    value = torch.ones(3, requires_grad=True).exp()
    with Activations().counting():
        made = value.sin()
    value.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        made.sum().backward()
