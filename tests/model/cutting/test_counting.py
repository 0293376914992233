import pytest
import torch

from paceline.model.cutting.counting import MOVED, counted, nbytes_of


def test_a_product_counts_its_operations_and_what_it_writes():
    made, count = counted(lambda: torch.ones(3, 4) @ torch.ones(4, 5))
    assert made.shape == (3, 5)
    assert count.operations == 2 * 3 * 4 * 5 + MOVED * 15


def test_products_and_what_other_operations_move_are_told_apart():
    x = torch.ones(3, 4)
    _, count = counted(lambda: torch.relu(x @ torch.ones(4, 5)).t())
    assert count.flops == 2 * 3 * 4 * 5
    assert count.moved_bytes == 4 * (
        4 * 5 + 2 * 3 * 5
    )  # ones are written; relu reads and writes; a view does neither


@pytest.mark.parametrize("samples", [3, 7])
def test_weights_of_products_are_counted_once_for_any_number_of_samples(samples):
    x, weight, image, kernel = (
        torch.ones(*size) for size in ((samples, 4), (5, 4), (samples, 2, 3, 3), (6, 2, 1, 1))
    )
    functional = torch.nn.functional
    with torch.no_grad():
        assert counted(lambda: functional.linear(x, weight))[1].weight_bytes == 4 * 20
        assert counted(lambda: functional.linear(x, weight, torch.ones(5)))[1].weight_bytes == 4 * 20
        assert counted(lambda: functional.conv2d(image, kernel))[1].weight_bytes == 4 * 12
        assert counted(lambda: torch.bmm(x[None], x.t()[None]))[1].weight_bytes == 0  # two values


def test_a_share_of_samples_has_all_weights():
    _, count = counted(lambda: torch.ones(3, 4) @ torch.ones(4, 5))
    assert count.per_sample(3).weight_bytes == count.weight_bytes
    assert count.per_sample(3).flops == count.flops / 3
    assert count.times(1 / 4).weight_bytes == count.weight_bytes / 4


def test_a_table_is_read_where_it_is_looked_at():
    table, places = torch.ones(1000, 4), torch.tensor([1, 2, 3])
    _, count = counted(lambda: torch.nn.functional.embedding(places, table))
    assert count.moved_bytes == 2 * 3 * 4 * 4


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_moves_its_inputs_and_its_outputs_alone(device):
    query = torch.ones(2, 3, 16, 8, device=device)
    attend = torch.nn.functional.scaled_dot_product_attention
    with torch.no_grad():
        _, count = counted(lambda: attend(query, query, query, is_causal=True))
    assert count.moved_bytes == 4 * query.nbytes
    assert count.flops == 2 * 2 * 2 * 3 * 16 * 16 * 8  # of the whole square


def test_bytes_of_a_structure_are_those_of_its_tensors():
    assert nbytes_of([torch.zeros(3), {"a": torch.zeros(2, dtype=torch.float64)}, "text"]) == 12 + 16
