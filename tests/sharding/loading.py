"""Loading by slices, for tests that run in a process with emulated devices, or in several processes."""

import os
import resource
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jpaged.config.options import ParallelConfig
from jpaged.runtime.mesh import DeviceMesh
from models import load_config, load_params, resolve_source
from models.safetensors_folder import SafetensorsFolder
from models.sharded_weights import read_sharded_params, shard_params


def by_slices_and_whole(model: str, shards: int, dtype: str) -> dict[str, Any]:
    """Whether slices of the files are the slices of the whole arrays, and what was read."""
    source = resolve_source(model)
    config = load_config(source)
    mesh = DeviceMesh(ParallelConfig(tensor_parallel_size=shards)).mesh
    whole = shard_params(load_params(source, config, jnp.dtype(dtype)), config, mesh)
    assert source.path is not None
    reader = SafetensorsFolder(source.path)
    parts = read_sharded_params(reader, config, jnp.dtype(dtype), mesh)
    same = jax.tree.map(
        lambda a, b: bool(np.array_equal(np.asarray(a), np.asarray(b))) and a.sharding == b.sharding, parts, whole
    )
    return {"same": all(jax.tree.leaves(same)), "leaves": len(jax.tree.leaves(parts)), "bytes_read": reader.bytes_read}


def load_in_little_memory(options: dict[str, Any]) -> None:
    """Join a job of one device per process, and load with less memory than the files are long; print what was read."""
    from jpaged.runtime.multi_process.join import connect
    from jpaged.runtime.multi_process.processes import find_processes

    group = find_processes(options["coordinator"], options["num_processes"], options["process_id"], {})
    assert group is not None
    channels = connect(group, "loading")
    source = resolve_source(options["model"])
    config = load_config(source)
    parallel = ParallelConfig(tensor_parallel_size=2, num_processes=2)
    mesh = DeviceMesh(parallel)
    assert source.path is not None
    size = (source.path / "model.safetensors").stat().st_size
    _limit_memory(int(0.9 * size))
    reader = SafetensorsFolder(source.path)
    params = read_sharded_params(reader, config, jnp.float32, mesh.mesh)
    jax.block_until_ready(params)
    held = sum(shard.data.nbytes for leaf in jax.tree.leaves(params) for shard in leaf.addressable_shards)
    print(f"read {reader.bytes_read} held {held} of {size}", flush=True)
    del params, reader
    try:
        load_params(source, config, jnp.float32)
    except MemoryError:
        print("the whole does not fit", flush=True)
    for channel in channels:
        channel.send(["done"])
        channel.receive(60)
    os._exit(0)


def _limit_memory(more: int) -> None:
    """Let this process use this many bytes more than it has; files that are only read do not count."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (data,) = (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + more, data + more))
