"""Hosts for tests: network namespaces joined by links of 100 Mbit/s, a Ray node in each.

A host has namespaces of its own for network, processes, mounts and its name, and its own /dev/shm. All of it depends on
one process that reads from a pipe: when the tests end, or are killed, the pipe closes, that process ends, and the
kernel takes the rest away: processes, interfaces, files. Where they were killed an empty folder stays, until the next.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import secrets
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import cloudpickle

__all__ = ["Driver", "Host", "Hosts", "can_make_hosts", "one_machine", "several_hosts"]

RAY = str(Path(sys.executable).with_name("ray"))
PORT = 6399
_START_S = 300.0  # a busy machine takes long to start Ray
_STARTS = 4
_OBJECT_STORE_BYTES = 80_000_000
_NAMESPACES = ("--net", "--pid", "--mount", "--uts", "--ipc", "--time")
_SETTINGS = {
    "RAY_worker_niceness": "0",  # else a busy machine starves the ranks
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
}
_QUICK_TO_MISS = {
    # A lost host is detected after some seconds, not after 30. A busy machine may take a moment to answer.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1500",
    "RAY_health_check_failure_threshold": "4",
}


@dataclass(slots=True)
class Host:
    """A machine of a test: what runs in it, and how to run more in it."""

    name: str
    address: str
    mark: str = ""
    """Environment variables of the processes of its Ray node."""
    inside: int = 0
    """A process in it, as this machine counts it."""
    enter: Sequence[str] = ()
    """The prefix of a command that runs in this host."""
    keeper: subprocess.Popen[bytes] | None = None

    def run(self, *command: str, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> str:
        """Run a command in this host. Return its output."""
        done = subprocess.run(
            [*self.enter, *command],
            env={**os.environ, **(env or {})},
            timeout=timeout_s,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} on {self.name}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def end(self) -> None:
        """Disconnect this host, as if its power failed."""
        if self.keeper is not None:
            self.keeper.kill()
            self.keeper.wait()


@dataclass(slots=True)
class Hosts:
    """Machines with a Ray cluster. Its token is in `env`."""

    hosts: list[Host]
    env: dict[str, str]
    real: bool
    """Whether they are namespaces. If not, all are this machine."""
    address: str = ""
    folder: Path = Path()
    """A folder with separate files on each host."""
    bare: list[Host] = field(default_factory=list)
    """Hosts on the same network that have no Ray node."""
    drivers: list[Driver] = field(default_factory=list)

    def driver(self, host: int = 0, **env: str) -> Driver:
        """A Python process on a host (bare ones come last) to call functions in. It ends with the hosts."""
        self.drivers.append(Driver([*self.hosts, *self.bare][host], self.env | env))
        return self.drivers[-1]


class Driver:
    """A Python process on a host that calls the functions it is sent."""

    def __init__(self, host: Host, env: Mapping[str, str]) -> None:
        words = [*host.enter, sys.executable, "-c", _LOOP]
        environment = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in that process. Return its result, or raise its error."""
        self.start(function, *args)
        return self.result()

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        body = cloudpickle.dumps((function, args))
        assert self.process.stdin is not None
        self.process.stdin.write(struct.pack("<q", len(body)) + body)
        self.process.stdin.flush()

    def result(self) -> Any:
        assert self.process.stdout is not None
        kind, value = pickle.loads(_read(self.process.stdout))
        if kind == "raised":
            raise value
        return value

    def pid(self) -> int:
        """Of the Python process, as this machine counts it: `nsenter` forks it."""
        return self.process.pid if "nsenter" not in self.process.args[0] else _child(self.process.pid)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _read(stream: IO[bytes]) -> bytes:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError("the driver's process ended")
    return stream.read(struct.unpack("<q", head)[0])


# Answers go to what was stdout at first; what the functions print goes to stderr.
_LOOP = """
import os, pickle, struct, sys
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
while len(head := sys.stdin.buffer.read(8)) == 8:
    function, args = pickle.loads(sys.stdin.buffer.read(struct.unpack("<q", head)[0]))
    try:
        answer = ("returned", function(*args))
    except BaseException as error:
        error.__cause__ = error.__context__ = None
        answer = ("raised", error)
    try:
        body = pickle.dumps(answer)
    except Exception:
        body = pickle.dumps(("raised", RuntimeError(repr(answer[1]))))
    answers.write(struct.pack("<q", len(body)) + body)
    answers.flush()
"""


@functools.cache
def can_make_hosts() -> str:
    """Return the reason why namespaces cannot be created here. Empty if they can."""
    for tool in ("ip", "tc", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    words = [
        "unshare",
        *_NAMESPACES,
        "--fork",
        "ip",
        "link",
        "add",
        "left",
        "type",
        "veth",
        "peer",
        "name",
        "right",
    ]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else ""


@contextlib.contextmanager
def several_hosts(
    count: int = 2,
    *,
    bare: int = 0,
    cpus: int = 4,
    rate: str | None = "100mbit",
    quick_to_miss: bool = False,
) -> Iterator[Hosts]:
    """Hosts joined by a switch, with a Ray cluster on them unless they offer no `cpus`; `bare` are hosts without Ray.

    `rate` is that of each host's link, both ways. `quick_to_miss`: Ray soon notices that a host is lost.
    """
    token = secrets.token_hex(16)
    folder = _new_folder()
    env = _SETTINGS | (_QUICK_TO_MISS if quick_to_miss else {})
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_TMPDIR": str(folder)}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        switch = _keep("switch", "", folder, stack)
        hosts = [
            _keep(f"host{i}", f"10.77.0.{i + 1}", folder, stack, clock_s=1000 * i)
            for i in range(count + bare)
        ]
        switch.run("sh", "-c", "ip link add hub type bridge && ip link set hub up")
        for number, host in enumerate(hosts):
            _plug_in(switch, host, number, rate)
        if cpus:
            _start_ray(hosts[:count], env, cpus)
        for host in hosts:
            host.mark = token
        made = Hosts(hosts[:count], env, True, f"{hosts[0].address}:{PORT}", folder, hosts[count:])
        stack.callback(_end, made)
        yield made


def _new_folder() -> Path:
    """Named after this process. Namespaces of processes that have ended are removed."""
    for old in Path(tempfile.gettempdir()).glob("pl-hosts-*-*"):
        if not Path("/proc", old.name.split("-")[2]).exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"pl-hosts-{os.getpid()}-"))


def _keep(name: str, address: str, folder: Path, stack: contextlib.ExitStack, clock_s: int = 0) -> Host:
    """A host with only the process that keeps it alive. Its monotonic clock is ahead by the given seconds."""
    # Its name in its own list of hosts: Ray asks for the address of the host's name.
    settle = (
        f"mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs {folder}; hostname {name}; ip link set lo up; "
        f"printf '127.0.0.1 localhost\\n{address} {name}\\n' > {folder}/hosts; "
        f"mount --bind {folder}/hosts /etc/hosts; echo kept; exec cat"
    )
    keeper = subprocess.Popen(
        [
            "unshare",
            *_NAMESPACES,
            f"--monotonic={clock_s}",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            settle,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    host = Host(name, address, keeper=keeper)
    stack.callback(host.end)
    assert keeper.stdout is not None
    if keeper.stdout.readline() != b"kept\n":
        raise RuntimeError(f"namespaces for {name} could not be made")
    host.inside = _child(keeper.pid)
    host.enter = ("nsenter", "--target", str(host.inside), *_NAMESPACES, f"--wdns={os.getcwd()}")
    return host


def _plug_in(switch: Host, host: Host, number: int, rate: str | None) -> None:
    # The peer is made in the host's own namespace, which the switch's `ip` knows by a process of this machine alone:
    # so without --pid and --mount.
    of_switch = ("nsenter", "--target", str(switch.inside), "--net")
    make = f"ip link add port{number} type veth peer name eth0 netns {host.inside}"
    words = f"{make} && ip link set port{number} master hub && ip link set port{number} up"
    subprocess.run([*of_switch, "sh", "-c", words], check=True)
    host.run("sh", "-c", f"ip addr add {host.address}/24 dev eth0 && ip link set eth0 up")
    if rate is not None:
        # A bucket of 32 KiB is 2.6 ms of a link of 100 Mbit/s: what passes beyond the rate is little.
        shape = f"tbf rate {rate} burst 32kb latency 100ms"
        host.run("sh", "-c", f"tc qdisc add dev eth0 root {shape}")
        subprocess.run([*of_switch, "sh", "-c", f"tc qdisc add dev port{number} root {shape}"], check=True)


def _start_ray(hosts: Sequence[Host], env: Mapping[str, str], cpus: int) -> None:
    common = [RAY, "start", f"--num-cpus={cpus}", f"--object-store-memory={_OBJECT_STORE_BYTES}"]
    common += ["--disable-usage-stats", "--include-log-monitor=false"]
    head, *others = hosts
    words = [*common, f"--node-ip-address={head.address}"]
    words += ["--head", f"--port={PORT}", "--include-dashboard=false"]
    _start_node(head, words, env)
    for host in others:
        words = [*common, f"--node-ip-address={host.address}", f"--address={head.address}:{PORT}"]
        _start_node(host, words, env)


def _start_node(host: Host, words: Sequence[str], env: Mapping[str, str]) -> None:
    """Ray gives its own processes 30 s to start. A very busy machine may need more time."""
    for left in reversed(range(_STARTS)):
        try:
            host.run(*words, env=env, timeout_s=_START_S)
            return
        except RuntimeError as error:
            if not left or "timed out during startup" not in str(error):
                raise
            host.run(RAY, "stop", "--force", env=env, timeout_s=_START_S)


def _end(made: Hosts) -> None:
    for driver in made.drivers:
        driver.process.kill()
        driver.process.wait()


@contextlib.contextmanager
def one_machine(count: int = 2, *, cpus: int = 4) -> Iterator[Hosts]:
    """Substitute if namespaces cannot be created: Ray's cluster utility, with several nodes on this machine."""
    token = secrets.token_hex(16)
    env = {**_SETTINGS, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    script = _CLUSTER.format(count=count, cpus=cpus, store=_OBJECT_STORE_BYTES)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **env},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    made = Hosts([], env, real=False, folder=_new_folder())
    try:
        line = b""
        while not line.startswith(b"address "):
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("Ray's cluster utility could not start")
        made.address = line.split()[1].decode()
        made.hosts = [Host(f"node{i}", "127.0.0.1", mark=token) for i in range(count)]
        yield made
    finally:
        _end(made)
        process.stdin.close()
        process.wait()
        shutil.rmtree(made.folder, ignore_errors=True)


_CLUSTER = """
import sys
from ray.cluster_utils import Cluster
node = dict(num_cpus={cpus}, object_store_memory={store}, include_log_monitor=False)
cluster = Cluster(initialize_head=True, head_node_args=dict(node, include_dashboard=False))
for _ in range({count} - 1):
    cluster.add_node(**node)
cluster.wait_for_nodes()
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
