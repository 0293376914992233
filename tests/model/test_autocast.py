import threading

import pytest
import torch
from torch import nn

from paceline.model.autocast import Autocast, computing, in_force, suspended

BFLOAT = Autocast("cpu", torch.bfloat16, True)


def products_dtype():
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_nothing_is_in_force_by_itself():
    assert in_force() == ()
    with computing(()), suspended():
        assert products_dtype() == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache", [True, False])
def test_what_is_in_force_is_found(dtype, cache):
    with torch.autocast("cpu", dtype, cache_enabled=cache):
        (found,) = in_force()
    assert found == Autocast("cpu", dtype, cache)
    assert str(found) == f"cpu {str(dtype).removeprefix('torch.')}"


def test_it_is_suspended_and_back_again():
    with torch.autocast("cpu", torch.bfloat16):
        with suspended():
            assert products_dtype() == torch.float32
            with computing([BFLOAT]):
                assert products_dtype() == torch.bfloat16
            assert products_dtype() == torch.float32
        assert in_force() == (BFLOAT,)


def test_it_holds_in_a_thread_that_did_not_have_it():
    found = []

    def look():
        found.append(products_dtype())
        with computing([BFLOAT]):
            found.append(products_dtype())

    with torch.autocast("cpu", torch.bfloat16):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert found == [torch.float32, torch.bfloat16]


def test_parameters_are_cast_anew_after_an_update():
    """Torch caches casts until the end of the outermost autocast, here until after the second pass."""
    layer = nn.Linear(1, 1, bias=False)
    found = []
    with torch.autocast("cpu", torch.bfloat16), suspended():
        for value in (1.0, 2.0):
            nn.init.constant_(layer.weight, value)
            with computing([BFLOAT]):
                found.append(layer(torch.ones(1, 1)).item())
    assert found == [1.0, 2.0]


def test_an_error_ends_it():
    with pytest.raises(KeyError), computing([BFLOAT]):
        raise KeyError
    assert in_force() == ()
