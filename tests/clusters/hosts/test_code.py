"""Transfer of the user's code to hosts that lack it, or that have another version."""

import sys

import cloudpickle
import pytest
import torch
from clusters.ray_hosts import needs_namespaces, needs_ray, on_ray, on_the_hosts, run_of
from conformance.cases import STEPS

import paceline as pl
from paceline.clusters.hosts.code import own_modules, own_path, travelling_by_value

pytestmark = on_the_hosts

MODULE = """
import torch
from a_neighbour import slope

def loss(outputs, targets):
    return slope() * torch.nn.functional.mse_loss(outputs, targets)
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "of_the_user").mkdir()
    (tmp_path / "of_the_user" / "__init__.py").write_text("")
    (tmp_path / "of_the_user" / "losses.py").write_text("def loss(): return 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import of_the_user.losses

    yield of_the_user.losses
    for name in ("of_the_user", "of_the_user.losses"):
        del sys.modules[name]


def test_modules_of_the_user_are_known_by_their_place_and_those_installed_are_not(own_module, tmp_path):
    found = own_modules()
    assert found["of_the_user"][0] == "of_the_user/__init__.py"
    assert found["of_the_user.losses"][0] == "of_the_user/losses.py"
    assert not {"torch", "os", "paceline", "paceline.clusters.hosts.code", "numpy"} & found.keys()
    assert str(tmp_path) in own_path()
    assert not [entry for entry in own_path() if "site-packages" in entry]


def test_a_module_travels_by_value_inside_the_block_alone(own_module):
    before = cloudpickle.dumps(own_module.loss)
    with travelling_by_value(["of_the_user.losses"]):
        inside = cloudpickle.dumps(own_module.loss)
    assert b"losses" in before
    assert len(inside) > len(before)
    assert cloudpickle.dumps(own_module.loss) == before


def test_a_module_with_two_names_is_registered_once(own_module, monkeypatch):
    monkeypatch.setitem(sys.modules, "a_second_name", own_module)
    with travelling_by_value(["a_second_name", "of_the_user.losses"]):
        assert cloudpickle.list_registry_pickle_by_value() >= {"of_the_user.losses"}
    assert "of_the_user.losses" not in cloudpickle.list_registry_pickle_by_value()


def test_a_module_that_the_user_registered_stays_registered(own_module):
    cloudpickle.register_pickle_by_value(own_module)
    try:
        with travelling_by_value(["of_the_user.losses"]):
            pass
        assert "of_the_user.losses" in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(own_module)


@pytest.mark.slow
@needs_ray
@needs_namespaces
@pytest.mark.parametrize("elsewhere", ["", "def slope(): return 7.0\n"], ids=["missing", "different"])
def test_code_reaches_a_host_that_does_not_have_it(hosts, driver, elsewhere):
    name = f"with_{len(elsewhere)}"
    folder = hosts.folder / name

    def write(where, files):
        for file, text in files.items():
            path = where / file
            command = f"mkdir -p {folder} && printf %s '{text}' > {path}"
            yield ("sh", "-c", command)

    ours = {"a_loss.py": MODULE, "a_neighbour.py": "def slope(): return 2.0\n"}
    for command in write(folder, ours):
        hosts.hosts[0].run(*command)
    if elsewhere:
        for command in write(folder, {"a_neighbour.py": elsewhere}):
            hosts.hosts[1].run(*command)

    def run():
        import sys

        sys.path.insert(0, str(folder))
        try:
            import a_loss
            from tasks import a_task

            cluster = on_ray(workers=2)
            ring = "all-reduce:algorithm=ring"
            return run_of(pl.train(a_task(loss=a_loss.loss), ring, cluster, steps=STEPS))
        finally:
            sys.path.remove(str(folder))
            for module in ("a_loss", "a_neighbour"):
                sys.modules.pop(module, None)

    from tasks import a_task

    def doubled(outputs, targets):
        return 2.0 * torch.nn.functional.mse_loss(outputs, targets)

    expected = pl.train(
        a_task(loss=doubled), "all-reduce:algorithm=ring", pl.Local(workers=2, threads=1), steps=STEPS
    )
    assert torch.equal(driver.call(run)["parameters"], expected.parameters)
