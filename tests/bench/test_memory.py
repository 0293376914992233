import pytest
from refusals import has, refused

from paceline.bench.memory import check_memory, needed_bytes
from paceline.bench.spec import Spec
from paceline.errors import ConfigurationError

MIB = 2**20


def spec(**changes):
    given = {"pattern": "all-reduce", "algorithms": ("ring",), "begin_bytes": MIB, "end_bytes": 64 * MIB}
    return Spec(**(given | changes))


def needed(**changes):
    asked = spec(**changes)
    return needed_bytes(asked, asked.lengths)


def test_every_rank_has_a_tensor():
    assert 4 * 64 * MIB <= needed() < 8 * 64 * MIB


def test_all_to_all_holds_a_vector_of_every_rank_on_every_rank():
    assert needed(algorithms=("all-to-all",)) - needed() >= 4 * 4 * 64 * MIB


def test_windows_of_all_sizes_live_together():
    sizes = 64 + 16 + 4 + 1
    assert needed(algorithms=("shared", "ring")) - needed() == (4 + 1) * sizes * MIB


def test_more_workers_need_more():
    assert needed(workers=64) > 10 * needed(workers=4)


def test_what_fits_and_what_nobody_knows_are_let_pass():
    check_memory(spec(), available=needed())
    check_memory(spec(), available=None)


def test_what_does_not_fit_is_refused_with_the_need_what_there_is_and_the_remedy():
    with pytest.raises(ConfigurationError) as refused:
        check_memory(spec(end_bytes=2**40), available=1024 * MIB)
    told = str(refused.value)
    assert "memory must hold 4 workers with tensors of 1 TiB" in told
    assert "need " in told
    assert "but got '1 GiB available'" in told
    assert "fewer --workers" in told
    assert "-e 64M fits" in told


def test_the_refusal_says_if_no_size_fits():
    with refused("memory", has("1 MiB")):
        check_memory(spec(), available=MIB)
