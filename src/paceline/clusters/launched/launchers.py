"""Environment variables of a process launcher (torchrun, mpirun, srun): rank and address of this process."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import ConfigurationError

DEFAULT_PORT = 29500  # the default of PyTorch
_PORTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedProcess:
    """One of the processes that were launched together."""

    launcher: str
    rank: int
    ranks: int
    address: str
    """Address of the rendezvous: a name or number of the first process's host."""
    port: int
    store_is_there: bool
    """Whether the launcher already serves PyTorch's store at that address."""

    @property
    def launch_id(self) -> str:
        """Text that is the same in all processes of a launch."""
        return f"{self.address}:{self.port}"


# For each launcher: the variables for rank, number of ranks, and number of ranks on this host.
_WORDS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", ""),
}


def is_launched(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher has started this process."""
    return any(rank in environment and ranks in environment for rank, ranks, _ in _WORDS.values())


def read_place(environment: Mapping[str, str]) -> LaunchedProcess:
    """Read the variables of the first launcher that has set a rank and a number of ranks."""
    for launcher, (rank, ranks, local) in _WORDS.items():
        if rank in environment and ranks in environment:
            return LaunchedProcess(
                launcher=launcher,
                rank=_number(environment, rank, at_least=0, below=_number(environment, ranks, at_least=1)),
                ranks=_number(environment, ranks, at_least=1),
                address=_address(environment, launcher, environment.get(ranks) == environment.get(local)),
                port=_port(environment, launcher),
                store_is_there=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            )
    words = "; ".join(f"{launcher}: {rank}, {ranks}" for launcher, (rank, ranks, _) in _WORDS.items())
    remedy = f"start the script with torchrun, mpirun or srun, or use pl.Local. Variables: {words}"
    raise ConfigurationError("the environment", "must set this process's rank", "no such variable", remedy)


def _address(environment: Mapping[str, str], launcher: str, all_here: bool) -> str:
    if environment.get("MASTER_ADDR"):
        return environment["MASTER_ADDR"]
    if all_here:
        return "127.0.0.1"
    for word in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"):
        if launcher == "srun" and environment.get(word):
            return first_node(environment[word])
    remedy = "set it to the first process's host for all processes (mpirun -x MASTER_ADDR=…)"
    raise ConfigurationError("MASTER_ADDR", "must be set if processes are on several hosts", None, remedy)


def first_node(nodes: str) -> str:
    """Return the first host of a Slurm host list: a[03-05,9],b gives a03."""
    name, bracket, rest = re.split(r"(\[|,|$)", nodes, maxsplit=1)[:3]
    return name + re.split(r"[-,\]]", rest, maxsplit=1)[0] if bracket == "[" else name


def _port(environment: Mapping[str, str], launcher: str) -> int:
    """Return the port of the rendezvous. Jobs on one host get different ports, while there are enough ports."""
    if environment.get("MASTER_PORT"):
        return _number(environment, "MASTER_PORT", at_least=1, below=65536)
    if launcher == "mpirun":  # Open MPI's name of the job
        return DEFAULT_PORT + zlib.crc32(environment.get("PMIX_NAMESPACE", "").encode()) % _PORTS
    job = environment.get("SLURM_JOB_ID", "")
    return DEFAULT_PORT + (int(job) % _PORTS if job.isdigit() else 0)


def _number(environment: Mapping[str, str], word: str, *, at_least: int, below: int | None = None) -> int:
    text = environment[word]
    bound = f"must be a whole number from {at_least}" + (f" to {below - 1}" if below is not None else "")
    if not text.isdigit() or int(text) < at_least or (below is not None and int(text) >= below):
        raise ConfigurationError(word, bound, text, "the launcher sets it")
    return int(text)
