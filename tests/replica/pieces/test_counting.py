import torch

from paceline.replica.pieces.counting import MOVED, counted, nbytes_of


def test_a_product_counts_its_operations_and_what_it_writes():
    made, operations = counted(lambda: torch.ones(3, 4) @ torch.ones(4, 5))
    assert made.shape == (3, 5)
    assert operations == 2 * 3 * 4 * 5 + MOVED * 15


def test_bytes_of_a_structure_are_those_of_its_tensors():
    assert nbytes_of([torch.zeros(3), {"a": torch.zeros(2, dtype=torch.float64)}, "text"]) == 12 + 16
