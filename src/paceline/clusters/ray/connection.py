"""Connection to a Ray cluster: find, check and join one, or start a private one. Problems are reported immediately.

Ray's own `init` retries for 20 seconds with a wrong token, and for minutes without a cluster. So the cluster is checked
first, with functions outside Ray's public interface. If a release of Ray has changed these functions, `init` checks
the connection.
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
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from paceline.errors import ConfigurationError, RunError
from paceline.system import interrupts

_T = TypeVar("_T")
_ANSWER_S = 10.0  # timeout for an answer of the cluster's head
_POLL_S = 0.1  # how often a wait checks for an interrupt
_NO_CLUSTER = "must be the address of a running Ray cluster"
_START_ONE = "start one with `ray start --head`, or omit the address for a private Ray on this machine"


def import_ray() -> Any:
    """Import ray, which is an optional dependency."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        remedy = "pip install 'paceline[ray]'"
        raise ConfigurationError("pl.Ray", "needs the package ray", f"{error}", remedy) from None


def answered(call: Callable[[], _T], *, more_s: float = 0.0) -> _T:
    """Return or raise the result of a call to the cluster's head. Raise RunError if the head does not answer.

    Some of Ray's calls have no timeout. They run in a thread, which is abandoned after the timeout.
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
    until_s = time.monotonic() + _ANSWER_S + more_s
    while thread.is_alive() and time.monotonic() < until_s:
        interrupts.safe_point()
        thread.join(_POLL_S)
    for error in errors:
        raise error
    if not results:
        raise RunError(
            f"the head of the Ray cluster did not answer within {_ANSWER_S:g} s; is it still running?"
        )
    return results[0]


@contextlib.contextmanager
def connected(address: str | None, ranks: int, resources: Mapping[str, float]) -> Iterator[None]:
    """Connect to Ray for the time of a run. If the user is already connected to a cluster, use that one."""
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
        # Ray would try again at exit, without a timeout.
        atexit.unregister(ray.shutdown)
        with contextlib.suppress(Exception):  # outside Ray's public interface
            ray._private.worker._global_node.kill_all_processes(check_alive=False, allow_graceful=False)


def _check_same(ray: Any, address: str | None) -> None:
    """Check that the existing connection is to the requested cluster. A process has only one connection to Ray."""
    if ray.util.client.ray.is_connected():
        remedy = "run this on a host of the cluster, or with `ray job submit`: ranks connect to this process"
        raise ConfigurationError("pl.Ray", "needs a direct connection", "a connection by ray://", remedy)
    if address is None or address == "auto":
        return
    there = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    known_host, _, known_port = there.rpartition(":")
    if port != known_port or _resolve(host, address) != _resolve(known_host, there):
        remedy = "omit it, or call ray.shutdown() before"
        raise ConfigurationError(
            "address", f"must be the address of ray.init's connection, {there}", address, remedy
        )


# A private Ray


def _start(ray: Any, ranks: int, resources: Mapping[str, float], stack: contextlib.ExitStack) -> None:
    """Start a Ray with enough logical CPUs for all ranks, even if this machine has fewer: workers may share its
    cores."""
    folder = tempfile.mkdtemp(prefix="paceline-ray-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    own = {name: amount * ranks for name, amount in resources.items() if name not in ("CPU", "GPU", "memory")}
    # By default Ray's workers run at a lower priority than all other processes. Ranks should have full priority.
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
    """Set environment variables in this block, except those that are already set."""
    ours = {name: word for name, word in words.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


# An existing cluster


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
    """Raise an error for an address that is known to be wrong."""
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
        raise ConfigurationError(
            "address", "must name a host that can be resolved", address, remedy
        ) from None
    return str(found[0][4][0])


def _knock(host: str, port: int, address: str) -> None:
    try:
        socket.create_connection((host, port), timeout=_ANSWER_S / 2).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigurationError("address", _NO_CLUSTER, f"{address} ({why})", _START_ONE) from None


def _ask_head(address: str) -> None:
    """Check that the cluster's head accepts our token, and that this machine is in the cluster."""
    try:
        # The process that listens there may not be Ray, and may never answer.
        answered(lambda: _introduce(address))
    except RunError:
        value = f"{address} (something listens there, but does not answer as Ray's head)"
        raise ConfigurationError("address", _NO_CLUSTER, value, _START_ONE) from None
    except (ImportError, AttributeError, TypeError):
        pass  # another release of Ray: its init will report the problem
    except Exception as error:
        raise _translated(address, error) from None


def _introduce(address: str) -> None:
    raylet = importlib.import_module("ray._raylet")
    services = importlib.import_module("ray._private.services")
    with contextlib.suppress(ImportError, AttributeError), _quiet():
        # Like `init`, use a token that is found, even if it was not requested.
        setup = importlib.import_module("ray._private.authentication.authentication_token_setup")
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    nodes = {node.hex() for node in raylet.GcsClient(address=address).get_all_node_info(timeout=_ANSWER_S)}
    if not nodes & set(services.find_node_ids()):
        remedy = f"run `ray start --address={address}` here first, or run this on a host of the cluster"
        raise ConfigurationError("address", "must be a cluster that includes this machine", address, remedy)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Ray's warnings. Paceline's own errors have all that the user needs."""
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
    return ConfigurationError(
        "the token", f"must be the token of the Ray cluster at {address}", value, remedy
    )


def _default_token() -> bool:
    return os.path.exists(os.path.expanduser("~/.ray/auth_token"))


def _other_version(address: str, message: str) -> str:
    """Return an error text with Ray's message about the versions of the cluster and of this process."""
    lines = " ".join(line.strip() for line in message.splitlines() if line.strip())
    return (
        f"the versions of this process differ from the Ray cluster at {address}: {lines}; "
        "install the cluster's versions here"
    )
