"""Parameters for several devices, each of which reads its own part.

Of a split array a device is given its slice alone, and no process reads what none of its devices holds.
"""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from models.config import ModelConfig
from models.partition import AXIS, kv_repeats, padded_vocab, param_specs, sharded_config
from models.places import EMBEDDING, HEAD, Place, places
from models.safetensors_folder import SafetensorsFolder
from models.source import ModelSource
from models.weights import Params, array_at, check_tensors, load_params, parameter_shapes


def load_sharded_params(
    source: ModelSource, config: ModelConfig, dtype: DTypeLike, mesh: Mesh, *, seed: int = 0
) -> Params:
    """The parameters of `sharded_config(config, shards)` as arrays over `mesh`, split by the rules.

    Of a safetensors checkpoint every device reads its slices; other formats are read whole on the host, once, and then
    split. Raises what `load_params` raises.
    """
    if source.kind != "safetensors":
        return shard_params(load_params(source, config, dtype, seed=seed), config, mesh)
    assert source.path is not None
    reader = SafetensorsFolder(source.path)
    check_tensors(reader.shapes(), places(config), config, source)
    return read_sharded_params(reader, config, dtype, mesh)


def read_sharded_params(reader: SafetensorsFolder, config: ModelConfig, dtype: DTypeLike, mesh: Mesh) -> Params:
    """The parameters as `load_sharded_params` gives them, out of an open folder."""
    shards = mesh.shape[AXIS]
    parts, repeats = _parts_by_path(config, shards), kv_repeats(config, shards)

    def load(path: Any, leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.Array:
        keys = tuple(key.key for key in path)
        read: dict[Any, np.ndarray] = {}  # devices that hold the same slice share one reading of it

        def slice_of(index: Any) -> np.ndarray:
            key = tuple(part.indices(size)[:2] for part, size in zip(index, leaf.shape, strict=True))
            if key not in read:
                read[key] = _read_slice(reader, parts[keys], key, leaf, repeats)
            return read[key]

        return jax.make_array_from_callback(leaf.shape, sharding, slice_of)

    return jax.tree_util.tree_map_with_path(load, *_shapes_and_shardings(config, dtype, mesh))


def shard_params(params: Params, config: ModelConfig, mesh: Mesh) -> Params:
    """The whole parameters of `config`, arrays on the host, as arrays of the sharded model over `mesh`."""
    shards = mesh.shape[AXIS]
    dtype = params["embed"]["embedding"].dtype
    repeated = {place.path for place in places(config).values() if place.kv_heads and kv_repeats(config, shards) > 1}

    def split(path: Any, leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.Array:
        keys = tuple(key.key for key in path)
        array = array_at(params, EMBEDDING if keys == HEAD and "head" not in params else keys)
        if keys in repeated:
            array = _repeat_kv_heads(array, config, leaf.shape)
        if keys == HEAD:
            array = np.pad(array, ((0, leaf.shape[0] - array.shape[0]), (0, 0)))
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: array[index])

    return jax.tree_util.tree_map_with_path(split, *_shapes_and_shardings(config, dtype, mesh))


def sharded_parameter_shapes(config: ModelConfig, dtype: DTypeLike, shards: int) -> Params:
    """The parameter tree of the sharded model with a jax.ShapeDtypeStruct in place of every array."""
    shapes = parameter_shapes(sharded_config(config, shards), dtype)
    if "head" in shapes:
        head = shapes["head"]["kernel"]
        rows = padded_vocab(config, shards)
        shapes["head"]["kernel"] = jax.ShapeDtypeStruct((rows, *head.shape[1:]), head.dtype)
    return shapes


def bytes_of_shard(config: ModelConfig, dtype: DTypeLike, shards: int) -> int:
    """Bytes of the parameters that one of `shards` devices holds: its part of what is split, and all the rest."""
    shapes = sharded_parameter_shapes(config, dtype, shards)
    specs = param_specs(config, shapes)
    leaves = zip(jax.tree.leaves(shapes), jax.tree.leaves(specs), strict=True)
    return sum(leaf.size * leaf.dtype.itemsize // (shards if AXIS in spec else 1) for leaf, spec in leaves)


def _shapes_and_shardings(config: ModelConfig, dtype: DTypeLike, mesh: Mesh) -> tuple[Params, Params]:
    shapes = sharded_parameter_shapes(config, dtype, mesh.shape[AXIS])
    specs = param_specs(config, shapes)
    return shapes, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def _parts_by_path(config: ModelConfig, shards: int) -> dict[tuple[str, ...], list[tuple[str, Place]]]:
    """The tensors that make up each array of the sharded model, by its path, and their places in it."""
    # Where kv heads are repeated, queries lie beside another number of them than in the checkpoint.
    found: dict[tuple[str, ...], list[tuple[str, Place]]] = {}
    for name, place in places(sharded_config(config, shards)).items():
        found.setdefault(place.path, []).append((name, place))
    if config.tie_word_embeddings and HEAD in found:
        [(embedding, _)], [(_, place)] = found[EMBEDDING], found[HEAD]
        found[HEAD] = [(embedding, place)]
    return found


def _read_slice(
    reader: SafetensorsFolder, parts: list[tuple[str, Place]], bounds: tuple[tuple[int, int], ...],
    leaf: jax.ShapeDtypeStruct, kv_repeats: int,
) -> np.ndarray:  # fmt: skip
    """The elements `bounds` (start and stop on each axis) of one array; rows past the end of a tensor are zeros.

    Each kv head of a tensor occurs `kv_repeats` times.
    """
    out = np.zeros([stop - start for start, stop in bounds], leaf.dtype)
    whole = np.broadcast_to(np.int8(0), leaf.shape)  # has the shape of the array, and no memory
    for name, place in parts:
        index, repeats = place.index, kv_repeats if place.kv_heads else 1
        target = out[index]
        axes = bounds[1:] if index else bounds  # a layer's number is the first entry of an index
        (start, stop), columns = axes[0], axes[-1] if len(place.shape) == 2 else None
        # One entry of the leading axis is this many rows of the tensor: the elements between it and the input axis.
        inner = whole[index].shape[1:-1] if columns is not None else whole[index].shape[1:]
        rows = math.prod(inner)
        first, last = start // repeats, -(-stop // repeats)
        tensor_rows = place.shape[0] // repeats
        bounds_of_rows = (min(first * rows, tensor_rows), min(last * rows, tensor_rows))
        values = reader.read_part(name, bounds_of_rows, columns)
        values = values.reshape(-1, *inner, *values.shape[1:])
        if repeats > 1:
            values = np.repeat(values, repeats, axis=0)[start - first * repeats :][: stop - start]
        target[: len(values)] = values
    return out


def _repeat_kv_heads(array: np.ndarray, config: ModelConfig, shape: tuple[int, ...]) -> np.ndarray:
    """The fused `[L, K, G + 2, ...]` with each kv head repeated, and its queries dealt out among the copies."""
    group = config.num_heads // config.num_kv_heads
    queries = array[:, :, :group].reshape(shape[0], shape[1], -1, *shape[3:])
    pairs = np.repeat(array[:, :, group:], shape[1] // config.num_kv_heads, axis=1)
    return np.concatenate([queries, pairs], axis=2)
