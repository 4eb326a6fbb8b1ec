"""How the processes of an engine meet: at the coordinator's port, where they are checked before JAX starts.

JAX starts in no process before all of them agree on how many they are and on the config; a refusal is a ValueError,
with the reason, in every process that has connected.
"""

import ctypes
import os
import socket
import sys
import time

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jpaged.config.engine import EngineConfig
from jpaged.runtime.multi_process.driver import Driver
from jpaged.runtime.multi_process.follower import Follower
from jpaged.runtime.multi_process.processes import ProcessGroup
from jpaged.runtime.multi_process.wire import Channel

START_SECONDS = 300.0
_PROTOCOL = 1


def join(group: ProcessGroup, config: EngineConfig) -> Driver | Follower:
    """This process's part in the engine; JAX must not have started. Raises ValueError, in every process."""
    channels = connect(group, config.digest())
    return Driver(channels) if group.is_driver else Follower(channels[0])


def connect(group: ProcessGroup, digest: str, timeout: float = START_SECONDS) -> list[Channel]:
    """Channels to all followers, in their order, or from a follower to its driver; jax.distributed runs.

    `digest` names the config; it must be the same everywhere. Raises ValueError.
    """
    if jax.distributed.is_initialized():
        raise ValueError("this process already belongs to an engine of several processes; start another process")
    if group.is_driver:
        channels = _gather(group, digest, timeout)
        port = _free_port(group.host)
        for channel in channels:
            channel.send(["welcome", port])
    else:
        channel = _call(group, timeout)
        channel.send(["hello", group.process_id, _facts(group, digest)])
        channels, port = [channel], _await_welcome(channel, group, timeout)
    if "JAX_CPU_COLLECTIVES_IMPLEMENTATION" not in os.environ:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"{_bracketed(group.host)}:{port}", group.num_processes, group.process_id, local_device_ids=group.local_id,
        cluster_detection_method="deactivate", initialization_timeout=int(timeout),
    )  # fmt: skip
    _run_first_collective()
    return channels


def _run_first_collective() -> None:
    """Run a first collective. Gloo prints to standard output, which is for answers: send that to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        mesh = Mesh(np.array(jax.devices()), ("all",), axis_types=(AxisType.Auto,))
        total = jax.shard_map(
            lambda: lax.psum(lax.axis_index("all"), "all"), mesh=mesh, in_specs=(), out_specs=P(), check_vma=False
        )
        jax.block_until_ready(jax.jit(total)())
        ctypes.CDLL(None).fflush(None)  # what it has written may still be in the C library's buffer
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _facts(group: ProcessGroup, digest: str) -> dict[str, object]:
    """What must be the same in all processes."""
    return {
        "protocol": _PROTOCOL,
        "JAX version": jax.__version__,
        "num_processes": group.num_processes,
        "config digest": digest,
    }


def _gather(group: ProcessGroup, digest: str, timeout: float) -> list[Channel]:
    """The followers' channels, once all have connected and none is refused."""
    deadline = time.monotonic() + timeout
    found: dict[int, Channel] = {}
    with socket.create_server((group.host, group.port), family=_family(group.host)) as server:
        while len(found) < group.num_processes - 1:
            channel, process_id, facts = _accept(server, deadline, group, len(found))
            reason = _reason_to_refuse(process_id, facts, _facts(group, digest))
            if reason is None and (process_id not in range(1, group.num_processes) or process_id in found):
                reason = f"process_id={process_id} is out of range or already used; number the processes from 0"
            if reason is not None:
                for one in (channel, *found.values()):
                    one.send(["refused", reason])
                raise ValueError(reason)
            found[process_id] = channel
    return [found[i] for i in sorted(found)]


def _accept(server: socket.socket, deadline: float, group: ProcessGroup, count: int) -> tuple[Channel, int, dict]:
    while True:
        try:
            server.settimeout(max(0.0, deadline - time.monotonic()))
            channel = Channel(server.accept()[0])
            message = channel.receive(10.0)
        except (TimeoutError, BlockingIOError):
            raise ValueError(
                f"{count + 1} of num_processes={group.num_processes} processes have connected to {group.host}:"
                f"{group.port} in time; start the others, or set num_processes to how many there are"
            ) from None
        except ValueError:
            continue  # a stranger
        if message is not None and message[0] == "hello" and len(message) == 3 and isinstance(message[2], dict):
            return channel, message[1], message[2]


def _reason_to_refuse(process_id: int, facts: dict[str, object], own: dict[str, object]) -> str | None:
    """Why a process is refused, if it is."""
    for name, ours in own.items():
        if facts.get(name) != ours:
            return (
                f"process {process_id} has {name} {facts.get(name)} and process 0 has {ours}; "
                "start all processes with the same versions, the same model and the same options"
            )
    return None


def _call(group: ProcessGroup, timeout: float) -> Channel:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return Channel(socket.create_connection((group.host, group.port), timeout=5.0))
        except OSError as error:
            if time.monotonic() > deadline:
                raise ValueError(
                    f"process 0 does not answer at {group.host}:{group.port} ({error}); start it, or give its address"
                ) from None
            time.sleep(0.2)


def _await_welcome(channel: Channel, group: ProcessGroup, timeout: float) -> int:
    try:
        message = channel.receive(timeout)
    except TimeoutError:
        message = None
    if message is None:
        raise ValueError(f"process 0 at {group.host}:{group.port} exited before all had connected; see its output")
    if message[0] != "welcome":
        raise ValueError(str(message[1]))
    return int(message[1])


def _free_port(host: str) -> int:
    with socket.create_server((host, 0), family=_family(host)) as server:
        return server.getsockname()[1]


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
