"""The devices of an engine, and what lies where on them.

Ids, lengths and block tables are on every device, the pool and the layers are split by heads. With one device all is as
if there were no mesh. But for the config, this is the one place that knows how many devices there are.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jpaged.config.options import ParallelConfig
from models import build_model, load_params
from models.config import ModelConfig
from models.partition import AXIS, PAGE_SPEC, ShardedModel, shard_of, sharded_config
from models.sharded_weights import bytes_of_shard, load_sharded_params
from models.source import ModelSource

EVERYWHERE = P()
"""On every device, whole."""


class DeviceMesh:
    """A mesh ("data", "model") of one row: `shards` devices, each with all pages and its own heads of them.

    `devices` None: those that JAX sees. Raises ValueError, with the remedy, where there are too few, and in several
    processes where any device would be unused.
    """

    def __init__(self, parallel: ParallelConfig, devices: list[Any] | None = None) -> None:
        self.shards = parallel.tensor_parallel_size
        self.style = parallel.parallel_style
        devices = jax.devices() if devices is None else devices
        self._several_processes = parallel.num_processes > 1
        self._check_devices(devices)
        grid = np.array(devices[: self.shards]).reshape(1, self.shards)
        self.mesh = Mesh(grid, ("data", AXIS), axis_types=(AxisType.Auto, AxisType.Auto))

    def _check_devices(self, devices: list[Any]) -> None:
        if self.shards > len(devices):
            raise ValueError(
                f"tensor_parallel_size={self.shards}: JAX sees {len(devices)} {devices[0].platform} device(s); use at "
                f"most {len(devices)}, start more processes, or, to emulate devices on a CPU, set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={self.shards}"
            )
        if self._several_processes and self.shards != len(devices):
            raise ValueError(
                f"tensor_parallel_size={self.shards}: the processes have {len(devices)} devices together, and all "
                f"of them are used; use tensor_parallel_size={len(devices)}"
            )

    @property
    def device(self) -> Any:
        """One of the devices that this process drives; all are of a kind."""
        return self.mesh.local_devices[0]

    def sharding(self, spec: P) -> NamedSharding | None:
        """Where an array of that spec lies; None, JAX's own choice, with one device."""
        return None if self.shards == 1 else NamedSharding(self.mesh, spec)

    def put(self, arrays: Any) -> Any:
        """Host arrays, the same in every process, on every device. Their buffers may be in use until a step has run."""
        if self.shards == 1:
            return jax.device_put(arrays)
        if not self._several_processes:
            return jax.device_put(arrays, NamedSharding(self.mesh, EVERYWHERE))
        # device_put would ask all processes whether they agree: a collective for each array.
        return jax.tree.map(self._put_here, arrays)

    def _put_here(self, array: Any) -> jax.Array:
        parts = [jax.device_put(array, device) for device in self.mesh.local_devices]
        sharding = NamedSharding(self.mesh, EVERYWHERE)
        return jax.make_array_from_single_device_arrays(np.shape(array), sharding, parts)

    def create(self, function: Callable[[], Any], spec: P = EVERYWHERE) -> Any:
        """The arrays that `function` makes, made where they belong."""
        return function() if self.shards == 1 else jax.jit(function, out_shardings=self.sharding(spec))()

    def shape(self, shape: tuple[int, ...], dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        """An array that is on every device, without contents."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.sharding(EVERYWHERE))

    def jit(self, function: Callable[..., Any], in_specs: Any, out_specs: Any, **how: Any) -> Any:
        """`jax.jit(function, **how)`, run on every device with its parts of the arguments. Keywords are static."""
        if self.shards == 1:
            return jax.jit(function, **how)

        @functools.wraps(function)
        def by_shard(*args: Any, **static: Any) -> Any:
            each = functools.partial(function, **static)
            return jax.shard_map(each, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)(*args)

        return jax.jit(by_shard, **how)

    def jit_model(self, function: Callable[..., Any], in_specs: Any, out_specs: Any, **how: Any) -> Any:
        """As `jit`, for a function that calls the model: in the "pjit" style the compiler divides the work."""
        if self.shards == 1 or self.style == "shard_map":
            return self.jit(function, in_specs, out_specs, **how)
        is_spec = {"is_leaf": lambda leaf: isinstance(leaf, P)}
        return jax.jit(function, out_shardings=jax.tree.map(self.sharding, out_specs, **is_spec), **how)

    def build_model(self, config: ModelConfig, **options: Any) -> Any:
        """The model of `config`, the whole one, as `jit_model` is to be given it; `options` are `build_model`'s."""
        if self.shards == 1:
            return build_model(config, **options)
        whole = sharded_config(config, self.shards)
        if self.style == "pjit":
            return ShardedModel(build_model(whole, mesh=self.mesh, **options), config, collectives=False)
        return ShardedModel(build_model(shard_of(whole, self.shards), **options), config, collectives=True)

    def load_params(self, source: ModelSource, config: ModelConfig, dtype: Any, *, seed: int = 0) -> Any:
        """The parameters, each device's part on that device. Raises ValueError as `models.load_params` does."""
        if self.shards == 1:
            return jax.device_put(load_params(source, config, dtype, seed=seed))
        return load_sharded_params(source, config, dtype, self.mesh, seed=seed)

    def pool_config(self, config: ModelConfig) -> ModelConfig:
        """The config with the kv heads of the pool: repeated ones count each time."""
        return sharded_config(config, self.shards)

    def bytes_here(self, config: ModelConfig, dtype: Any) -> int:
        """Bytes that the weights take where `device` has its memory: of one GPU, or of this process on a CPU."""
        if self.shards == 1:
            return config.num_params * dtype.itemsize
        return bytes_of_shard(config, dtype, self.shards) * self._devices_of_a_memory

    def pool_bytes_here(self, size: int) -> int:
        """The part of `size` bytes of the pool that lies there."""
        return size * self._devices_of_a_memory // self.shards

    @property
    def _devices_of_a_memory(self) -> int:
        return len(self.mesh.local_devices) if self.device.platform == "cpu" else 1

    def part_of(self, arrays: Any) -> Any:
        """What one device has of sharded arrays, without contents."""
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.sharding.shard_shape(a.shape), a.dtype), arrays)

    def page_shardings(self) -> tuple[jax.sharding.Sharding, jax.sharding.Sharding]:
        """Where single pages of the pool lie on the devices, and in their host's pinned memory."""
        split = self.sharding(PAGE_SPEC) or jax.sharding.SingleDeviceSharding(self.device)
        return split, split.with_memory_kind("pinned_host")
