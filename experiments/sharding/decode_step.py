"""The decode step of a sharded model, compiled for devices that need not be there.

The engine's own step function, mesh and layouts; nothing is allocated.
"""

import contextlib
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.sharding.collectives import Collective, collectives_of
from jpaged.config.options import ParallelConfig
from jpaged.runtime.mesh import EVERYWHERE, DeviceMesh
from jpaged.runtime.sampling.lane_state import init_lane_state
from jpaged.runtime.step import forward
from jpaged.runtime.step_shape import StepShape
from models.config import ModelConfig
from models.partition import POOL_SPEC, param_specs
from models.sharded_weights import sharded_parameter_shapes
from pallas_kernels import allocate

PAGE_SIZE, MAX_MODEL_LEN = 16, 2048
_TARGETS = Path(__file__).parents[2] / "tests" / "gpu_proof" / "targets"
# Autotuning runs kernels, which takes a GPU.
_GPU_OPTIONS = {"xla_gpu_autotune_level": "0"}


@dataclass(frozen=True)
class StepFacts:
    """What a compiled decode step says of itself; bytes are of one device.

    `aliased`: what is updated in place.
    """

    collectives: list[Collective]
    weights: int
    pool: int
    temp: int
    aliased: int
    compile_seconds: float


def topology_devices(target: str, count: int) -> list[Any]:
    """`count` GPUs of the kind that a file of tests/gpu_proof/targets describes, in one node. Needs the CUDA plugin."""
    from jax.experimental import topologies

    jax.devices()  # JAX looks for plugins once, and JAX_PLATFORMS=cpu keeps this one from looking for a driver
    text = (_TARGETS / f"{target}.txtpb").read_text()
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="", topology=f"1x1x{count}", target_config=text
    )
    return list(topology.devices)


def compile_decode_step(
    config: ModelConfig,
    shards: int,
    *,
    devices: list[Any] | None = None,
    style: str = "shard_map",
    rows: int = 32,
    num_pages: int = 1024,
    dtype: Any = jnp.bfloat16,
    implementation: str | None = None,
    scan_unroll: Any = "full",
) -> StepFacts:
    """Facts of the step of `rows` rows with a token each, on `shards` of `devices` (None: JAX's)."""
    mesh = DeviceMesh(ParallelConfig(tensor_parallel_size=shards, parallel_style=style), devices)
    length = min(MAX_MODEL_LEN, config.max_length)
    options = {"max_model_len": length, "scan_unroll": scan_unroll, "attention_implementation": implementation}
    model = mesh.build_model(config, dtype=dtype, **options)
    width = length // PAGE_SIZE
    shape = StepShape(rows, rows, rows, width, decode=True)
    params = sharded_parameter_shapes(config, dtype, shards)
    specs = param_specs(config, params)
    heads = (mesh.pool_config(config).num_kv_heads, config.head_dim)
    pool = jax.eval_shape(partial(allocate, config.num_layers, num_pages, PAGE_SIZE, *heads, dtype))
    state = jax.eval_shape(partial(init_lane_state, rows, length, config.vocab_size))
    step = mesh.jit_model(
        partial(forward, model=model, vocab_size=config.vocab_size, max_logprobs=0),
        (specs, POOL_SPEC, EVERYWHERE, EVERYWHERE),
        (POOL_SPEC, EVERYWHERE, EVERYWHERE),
        static_argnames=("shape",),
        donate_argnums=(1, 2),
    )
    params = jax.tree.map(partial(_placed, mesh), params, specs)
    pool = jax.tree.map(lambda leaf: _placed(mesh, leaf, POOL_SPEC), pool)
    state = jax.tree.map(lambda leaf: _placed(mesh, leaf, EVERYWHERE), state)
    start = time.perf_counter()
    with jax.set_mesh(mesh.mesh) if devices is not None else contextlib.nullcontext():
        lowered = step.lower(params, pool, state, mesh.shape((shape.num_ints,)), shape=shape)
        compiled = lowered.compile(compiler_options=_GPU_OPTIONS if devices is not None else None)
    memory = compiled.memory_analysis()
    return StepFacts(
        collectives=collectives_of(compiled.as_text()),
        weights=_bytes_of_a_shard(params),
        pool=_bytes_of_a_shard(pool),
        temp=memory.temp_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        compile_seconds=time.perf_counter() - start,
    )


def _placed(mesh: DeviceMesh, leaf: Any, spec: Any) -> jax.ShapeDtypeStruct:
    # With one device of a topology the sharding must still name it: JAX would take a device of its own.
    sharding = jax.sharding.NamedSharding(mesh.mesh, spec)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _bytes_of_a_shard(tree: Any) -> int:
    leaves = jax.tree.leaves(tree)
    return sum(leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves)
