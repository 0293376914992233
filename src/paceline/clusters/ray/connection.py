"""The way to a Ray cluster: found, checked and joined, or a private one started. What is wrong is said at once.

Ray's own `init` tries for 20 seconds with a wrong token, and for minutes where there is no cluster. So the cluster is
asked before, with parts of Ray that are not of its public interface: where a release has changed them, `init` decides.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import math
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from paceline.errors import ConfigurationError, RunError

__all__ = ["answered", "connected", "import_ray"]

_T = TypeVar("_T")
_ANSWER_S = 10.0  # how long the cluster's head has to answer
_NO_CLUSTER = "must be that of a running Ray cluster"
_START_ONE = "start one with `ray start --head`, or leave the address out for a private Ray on this machine"


def import_ray() -> Any:
    """The package, which is an extra of paceline's."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        remedy = "pip install 'paceline[ray]'"
        raise ConfigurationError("pl.Ray", "needs the package ray", f"{error}", remedy) from None


def answered(call: Callable[[], _T], *, more_s: float = 0.0) -> _T:
    """What a call returns or raises that asks the cluster's head; RunError if that does not answer.

    Some of Ray's calls would wait for ever. The thread that is in one stays there.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=ask, name="ray-asks", daemon=True)
    thread.start()
    thread.join(_ANSWER_S + more_s)
    for error in errors:
        raise error
    if not results:
        raise RunError(
            f"the head of the Ray cluster did not answer within {_ANSWER_S:g} s; is it still there?"
        )
    return results[0]


@contextlib.contextmanager
def connected(address: str | None, ranks: int, resources: Mapping[str, float]) -> Iterator[None]:
    """Ray, for the time of a run. Where the user has connected to a cluster already, that one."""
    ray = import_ray()
    if ray.is_initialized():
        _check_same(ray, address)
        yield
        return
    with contextlib.ExitStack() as stack:
        if address is None:
            _start(ray, ranks, resources, stack)
        else:
            _join(ray, address)
        stack.callback(_leave, ray)
        yield


def _leave(ray: Any) -> None:
    try:
        answered(ray.shutdown)
    except RunError:
        # Ray would try again, and for ever, when the program ends.
        atexit.unregister(ray.shutdown)
        with contextlib.suppress(Exception):  # not of Ray's public interface
            ray._private.worker._global_node.kill_all_processes(check_alive=False, allow_graceful=False)


def _check_same(ray: Any, address: str | None) -> None:
    """A process has one connection to Ray: it must not be to another cluster than is asked for."""
    if ray.util.client.ray.is_connected():
        remedy = "run this on a host of the cluster, or by `ray job submit`: ranks talk to this process"
        raise ConfigurationError("pl.Ray", "needs a connection of its own", "one by ray://", remedy)
    if address is None or address == "auto":
        return
    there = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    known_host, _, known_port = there.rpartition(":")
    if port != known_port or _resolve(host, address) != _resolve(known_host, there):
        remedy = "leave it out, or call ray.shutdown() before"
        raise ConfigurationError(
            "address", f"must be that of ray.init's connection, {there}", address, remedy
        )


# A private Ray


def _start(ray: Any, ranks: int, resources: Mapping[str, float], stack: contextlib.ExitStack) -> None:
    """A Ray with room for the ranks, whatever this machine has: workers may take turns on its cores."""
    folder = tempfile.mkdtemp(prefix="paceline-ray-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    own = {name: amount * ranks for name, amount in resources.items() if name not in ("CPU", "GPU", "memory")}
    # Ray's workers give way to all other processes by default; ranks are what this machine is there for.
    with _environment(RAY_worker_niceness="0"):
        ray.init(
            address="local",
            num_cpus=max(1, math.ceil(resources.get("CPU", 0) * ranks)),
            resources=own or None,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )


@contextlib.contextmanager
def _environment(**words: str) -> Iterator[None]:
    """Set variables of the environment for the time of a block, but only those that are not set yet."""
    ours = {name: word for name, word in words.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


# A cluster that is there


def _join(ray: Any, address: str) -> None:
    _ask_before(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ray.exceptions.AuthenticationError as error:
        raise _wrong_token(address, error) from None
    except (ConnectionError, ValueError) as error:
        raise ConfigurationError("address", _NO_CLUSTER, address, f"{_START_ONE} ({error})") from None
    except RuntimeError as error:
        if "ersion mismatch" in str(error):
            raise RunError(_other_version(address, str(error))) from None
        raise RunError(f"Ray could not join the cluster at {address}: {error}") from None


def _ask_before(address: str) -> None:
    """Raise what is known to be wrong with an address."""
    try:
        services = importlib.import_module("ray._private.services")
        found: str = services.canonicalize_bootstrap_address(address)
    except ConnectionError:
        raise ConfigurationError("address", _NO_CLUSTER, address, _START_ONE) from None
    except (ImportError, AttributeError):
        found = address
    if found == "auto":
        return
    host, _, port = found.rpartition(":")
    _knock(_resolve(host, address), int(port), address if address != "auto" else found)
    _ask_head(found)


def _resolve(host: str, address: str) -> str:
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        remedy = f"the name does not resolve here: {error.strerror or error}"
        raise ConfigurationError("address", "must name a host that is known", address, remedy) from None
    return str(found[0][4][0])


def _knock(host: str, port: int, address: str) -> None:
    try:
        socket.create_connection((host, port), timeout=_ANSWER_S / 2).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigurationError("address", _NO_CLUSTER, f"{address} ({why})", _START_ONE) from None


def _ask_head(address: str) -> None:
    """Whether the cluster's head takes our token, and knows this machine."""
    try:
        # What listens there may be no Ray, and never answer.
        answered(lambda: _introduce(address))
    except RunError:
        value = f"{address} (something listens there, but does not answer as Ray's head)"
        raise ConfigurationError("address", _NO_CLUSTER, value, _START_ONE) from None
    except (ImportError, AttributeError, TypeError):
        pass  # another release of Ray: its init will tell
    except Exception as error:
        raise _translated(address, error) from None


def _introduce(address: str) -> None:
    raylet = importlib.import_module("ray._raylet")
    services = importlib.import_module("ray._private.services")
    with contextlib.suppress(ImportError, AttributeError), _quiet():
        # As `init` does: a token that is found is used, even if nobody asked for it.
        setup = importlib.import_module("ray._private.authentication.authentication_token_setup")
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    nodes = {node.hex() for node in raylet.GcsClient(address=address).get_all_node_info(timeout=_ANSWER_S)}
    if not nodes & set(services.find_node_ids()):
        remedy = f"run `ray start --address={address}` here first, or run this on a host of the cluster"
        raise ConfigurationError("address", "must be of a cluster that this machine is in", address, remedy)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Ray's advice: what the user has to know, our own errors say."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _translated(address: str, error: Exception) -> Exception:
    if isinstance(error, ConfigurationError):
        return error
    if isinstance(error, import_ray().exceptions.AuthenticationError):
        return _wrong_token(address, error)
    value = f"{address} ({error})"
    return ConfigurationError("address", _NO_CLUSTER, value, _START_ONE)


def _wrong_token(address: str, error: Exception) -> ConfigurationError:
    named = [name for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH") if os.environ.get(name)]
    where = named[0] if named else "~/.ray/auth_token" if _default_token() else ""
    value = f"another ({where})" if where else "none"
    remedy = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or copy the head's ~/.ray/auth_token here"
    return ConfigurationError("the token", f"must be that of the Ray cluster at {address}", value, remedy)


def _default_token() -> bool:
    return os.path.exists(os.path.expanduser("~/.ray/auth_token"))


def _other_version(address: str, message: str) -> str:
    """Ray's own words on which versions the cluster and this process have."""
    lines = " ".join(line.strip() for line in message.splitlines() if line.strip())
    return f"this process does not fit the Ray cluster at {address}: {lines}; install the cluster's versions here"
