import torch

from paceline.model.stages.resizable import ResizableBuffer


def test_freed_memory_takes_none_and_views_of_it_are_valid_after_the_next_allocation():
    flat = torch.arange(6.0)
    view = flat.view(2, 3).t()
    memory = ResizableBuffer(flat)
    memory.free()
    assert not memory.is_allocated
    assert memory.nbytes == flat.untyped_storage().nbytes() == 0
    memory.allocate().copy_(torch.arange(6.0) + 1)
    assert memory.nbytes == 24
    assert view.tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]


def test_an_empty_buffer_is_always_allocated():
    memory = ResizableBuffer(torch.empty(0))
    memory.free()
    assert memory.is_allocated
    assert memory.allocate().numel() == 0
