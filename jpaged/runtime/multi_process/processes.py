"""Which processes take part in an engine, and which of them this is: from flags, or from the launcher's variables.

Nothing is guessed; what is missing or contradicts itself is a ValueError with the remedy.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

AUTO = "auto"
_PORTS = 4096


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """`num_processes` processes that meet at `host`:`port`, where process 0 listens; this is `process_id`.

    `local_id`: the one GPU of its machine that the process uses, where the launcher has numbered them; None: all.
    """

    host: str
    port: int
    num_processes: int
    process_id: int
    local_id: int | None = None

    def __post_init__(self) -> None:
        if self.num_processes < 2:
            raise ValueError(
                f"num_processes={self.num_processes}: a coordinator is for two or more; leave coordinator out for one"
            )
        if not 0 <= self.process_id < self.num_processes:
            raise ValueError(
                f"process_id={self.process_id}: must be between 0 and {self.num_processes - 1}, since num_processes="
                f"{self.num_processes}"
            )
        if not 0 < self.port < 65536:
            raise ValueError(f"coordinator port {self.port}: must be between 1 and 65535")

    @property
    def is_driver(self) -> bool:
        """Whether this process plans."""
        return self.process_id == 0


def find_processes(
    coordinator: str | None, num_processes: int | None, process_id: int | None, environ: Mapping[str, str]
) -> ProcessGroup | None:
    """Who takes part, or None for this process alone. `coordinator` is "HOST:PORT", or "auto" to ask the environment.

    "auto" knows SLURM's, Open MPI's (4) and JAX's (JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID)
    variables, as JAX does; a number that is given wins. Raises ValueError.
    """
    if coordinator is None:
        for name, value in (("num_processes", num_processes), ("process_id", process_id)):
            if value is not None:
                raise ValueError(f"{name}={value}: only with coordinator='HOST:PORT' or 'auto'; give that too")
        return None
    if coordinator == AUTO:
        address, number, this, local = _from_environment(environ)
    else:
        address, number, this, local = coordinator, None, None, None
    number = num_processes if num_processes is not None else number
    this = process_id if process_id is not None else this
    for name, value in (("num_processes", number), ("process_id", this)):
        if value is None:
            raise ValueError(f"coordinator={coordinator!r}: give {name} too")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"coordinator={address!r}: give HOST:PORT, such as 10.0.0.1:9311, or auto")
    assert number is not None and this is not None
    return ProcessGroup(host.strip("[]"), int(port), number, this, local)


def _from_environment(environ: Mapping[str, str]) -> tuple[str, int | None, int | None, int | None]:
    if "JAX_COORDINATOR_ADDRESS" in environ:
        number, this = environ.get("JAX_NUM_PROCESSES"), environ.get("JAX_PROCESS_ID")
        return environ["JAX_COORDINATOR_ADDRESS"], _number(number), _number(this), None
    if all(f"SLURM_{name}" in environ for name in ("JOB_ID", "STEP_NODELIST", "NTASKS", "PROCID")):
        host = first_host(environ["SLURM_STEP_NODELIST"])
        port = _port(environ, int(environ["SLURM_JOB_ID"]))
        local = _local(environ, "SLURM_LOCALID")
        return f"{host}:{port}", int(environ["SLURM_NTASKS"]), int(environ["SLURM_PROCID"]), local
    if "OMPI_MCA_orte_hnp_uri" in environ:
        uri = environ["OMPI_MCA_orte_hnp_uri"]
        found = re.search(r"tcp://([^,:]+)|tcp6://\[([^,\]]+)", uri)
        if found is not None:
            port = _port(environ, int(uri.split(".")[0]) // _PORTS)
            host = found[1] or f"[{found[2]}]"
            number, this = int(environ["OMPI_COMM_WORLD_SIZE"]), int(environ["OMPI_COMM_WORLD_RANK"])
            return f"{host}:{port}", number, this, _local(environ, "OMPI_COMM_WORLD_LOCAL_RANK")
    raise ValueError(
        "coordinator='auto': neither srun, Open MPI 4's mpirun nor JAX_COORDINATOR_ADDRESS is in the environment; "
        "give coordinator='HOST:PORT', num_processes and process_id"
    )


def _local(environ: Mapping[str, str], name: str) -> int | None:
    """The process's number on its machine, from the launcher, unless the user has said which GPUs it uses."""
    return None if "JAX_LOCAL_DEVICE_IDS" in environ else _number(environ.get(name))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _port(environ: Mapping[str, str], job: int) -> int:
    """One port per job, in the range for short-lived use; JAX_COORDINATOR_PORT wins."""
    return int(environ.get("JAX_COORDINATOR_PORT", job % _PORTS + 65536 - _PORTS))


def first_host(node_list: str) -> str:
    """The first host of a SLURM list, such as "node[003-007,009],login1"."""
    found = re.match(r"([^,\[]+)(?:\[([^,\-\]]+))?", node_list)
    if found is None:
        raise ValueError(f"SLURM_STEP_NODELIST={node_list!r}: no host in it; give coordinator='HOST:PORT'")
    return found[1] + (found[2] or "")
