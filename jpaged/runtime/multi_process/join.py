"""How the processes of an engine find each other.

Lives here: join: the meeting at the coordinator's port, the checks, and the start of jax.distributed.
Promises: JAX starts in no process before all of them agree on how many they are and on the config; a refusal is a
ValueError in every process that has come, with the reason.
Must not know: steps, models.
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

from jpaged.runtime.multi_process.processes import Peers
from jpaged.runtime.multi_process.wire import Channel

START_SECONDS = 300.0
_PROTOCOL = 1


def join(peers: Peers, digest: str, timeout: float = START_SECONDS) -> list[Channel]:
    """Channels to all followers, in their order, or of a follower to its driver; jax.distributed runs.

    `digest` names the config; it must be the same everywhere. Raises ValueError.
    """
    if jax.distributed.is_initialized():
        raise ValueError("this process is part of an engine of several processes already; start another process")
    if peers.leads:
        channels = _gather(peers, digest, timeout)
        port = _free_port(peers.host)
        for channel in channels:
            channel.send(["welcome", port])
    else:
        channel = _call(peers, timeout)
        channel.send(["hello", *_card(peers, digest)])
        channels, port = [channel], _await_welcome(channel, peers, timeout)
    if "JAX_CPU_COLLECTIVES_IMPLEMENTATION" not in os.environ:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"{_bracketed(peers.host)}:{port}", peers.num_processes, peers.process_id, local_device_ids=peers.local_id,
        cluster_detection_method="deactivate", initialization_timeout=int(timeout),
    )  # fmt: skip
    _meet()
    return channels


def _meet() -> None:
    """The first collective of all devices. Gloo greets on the standard output, which is for answers: send it astray."""
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


def _card(peers: Peers, digest: str) -> list[object]:
    return [_PROTOCOL, jax.__version__, peers.num_processes, digest, peers.process_id]


def _gather(peers: Peers, digest: str, timeout: float) -> list[Channel]:
    """The followers' channels, once all have come and none is refused."""
    deadline = time.monotonic() + timeout
    found: dict[int, Channel] = {}
    with socket.create_server((peers.host, peers.port), family=_family(peers.host)) as server:
        while len(found) < peers.num_processes - 1:
            channel, card = _accept(server, deadline, peers, len(found))
            reason = _fault(card, _card(peers, digest), set(found))
            if reason is not None:
                for one in (channel, *found.values()):
                    one.send(["refused", reason])
                raise ValueError(reason)
            found[card[-1]] = channel
    return [found[i] for i in sorted(found)]


def _accept(server: socket.socket, deadline: float, peers: Peers, count: int) -> tuple[Channel, list]:
    while True:
        try:
            server.settimeout(max(0.0, deadline - time.monotonic()))
            channel = Channel(server.accept()[0])
            message = channel.receive(10.0)
        except (TimeoutError, BlockingIOError):
            raise ValueError(
                f"{count + 1} of num_processes={peers.num_processes} processes have come to {peers.host}:{peers.port} "
                "in time; start the others, or give the number that there are"
            ) from None
        except ValueError:
            continue  # a stranger
        if message is not None and message[0] == "hello" and len(message) == len(_card(peers, "")) + 1:
            return channel, message[1:]


def _fault(card: list, own: list, taken: set[int]) -> str | None:
    """Why a process is refused, if it is."""
    this = card[-1]
    for name, theirs, ours in zip(("protocol", "JAX version", "num_processes"), card, own, strict=False):
        if theirs != ours:
            return f"process {this} has {name}={theirs} and process 0 has {ours}; start all of them alike"
    if card[3] != own[3]:
        return (
            f"process {this} has another config (digest {card[3]}) than process 0 (digest {own[3]}); "
            "start all of them with the same model and the same options"
        )
    if not isinstance(this, int) or not 0 < this < own[2] or this in taken:
        return f"process_id={this} is no follower's, or taken; give each process its own, from 0 to {own[2] - 1}"
    return None


def _call(peers: Peers, timeout: float) -> Channel:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return Channel(socket.create_connection((peers.host, peers.port), timeout=5.0))
        except OSError as error:
            if time.monotonic() > deadline:
                raise ValueError(
                    f"process 0 does not answer at {peers.host}:{peers.port} ({error}); start it, or give its address"
                ) from None
            time.sleep(0.2)


def _await_welcome(channel: Channel, peers: Peers, timeout: float) -> int:
    try:
        message = channel.receive(timeout)
    except TimeoutError:
        message = None
    if message is None:
        raise ValueError(f"process 0 at {peers.host}:{peers.port} has gone before all had come; see what it said")
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
