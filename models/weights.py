"""Parameters out of files, or out of a seed.

Each tensor is converted straight into its place; all that is wrong with a checkpoint is said at once.
"""

import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from models import build_model
from models.config import ModelConfig
from models.families import PRESETS
from models.gguf_file import GGUFFile, config_of_gguf
from models.inputs import StepInputs
from models.places import Place, is_ignored, places
from models.safetensors_folder import SafetensorsFolder, config_of_folder
from models.source import ModelSource
from pallas_kernels import KVPages

Params = dict[str, Any]
_READERS = 2  # tensors converted at once: numpy lets go of the interpreter while it works
_DUMMY_PERIOD = 1_048_583  # a prime, so that no two rows of a matrix are the same piece of the random block


def load_config(source: ModelSource) -> ModelConfig:
    """The model's config out of its files, or the preset of that name. Raises ValueError."""
    if source.path is None:
        return PRESETS[source.name]
    return config_of_folder(source.path) if source.path.is_dir() else config_of_gguf(source.path)


def load_params(source: ModelSource, config: ModelConfig, dtype: DTypeLike, *, seed: int = 0) -> Params:
    """The parameters as NumPy arrays of `dtype` on the host, ready for `module.apply({"params": ...}, ...)`.

    Tensors are read and converted one by one into the stacked arrays, so that memory stays at one copy plus a
    tensor or two. `seed` matters for a `dummy` source alone. Raises one ValueError that lists every tensor that is
    missing, unexpected or misshapen.
    """
    if source.kind == "dummy":
        return dummy_params(config, dtype, seed)
    assert source.path is not None
    reader = SafetensorsFolder(source.path) if source.kind == "safetensors" else GGUFFile(source.path, config)
    wanted = places(config)
    check_tensors(reader.shapes(), wanted, config, source)
    params = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), parameter_shapes(config, dtype))

    def put(name: str) -> None:
        place = wanted[name]
        leaf = array_at(params, place.path)
        leaf[place.index] = reader.read(name).reshape(leaf[place.index].shape)

    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(put, wanted))
    return params


def parameter_shapes(config: ModelConfig, dtype: DTypeLike) -> Params:
    """The parameter tree with a jax.ShapeDtypeStruct in place of every array; allocates nothing."""
    module = build_model(config, dtype=dtype, max_model_len=1, attention_implementation="reference")

    def abstract(shape: tuple[int, ...], kind: DTypeLike = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(kind))

    one = abstract((1,))
    inputs = StepInputs(one, one, one, abstract((1, 1)), one, None, one)
    page = abstract((config.num_layers, 2, 1, config.num_kv_heads, config.head_dim), dtype)
    kv_pages = KVPages(page, page)
    return jax.eval_shape(module.init, jax.random.key(0), inputs, kv_pages)["params"]


def dummy_params(config: ModelConfig, dtype: DTypeLike, seed: int = 0) -> Params:
    """Random parameters as NumPy arrays: the same for the same config, dtype and seed on every machine.

    Weights are normal with deviation 0.02, sampled once per array and repeated with a prime period; scales are one and
    biases zero.
    """

    def fill(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name.endswith("scale"):
            return np.ones(leaf.shape, leaf.dtype)
        if name.endswith("bias"):
            return np.zeros(leaf.shape, leaf.dtype)
        random = np.random.default_rng([seed, zlib.crc32(name.encode())])
        block = random.standard_normal(min(leaf.size, _DUMMY_PERIOD), dtype=np.float32) * np.float32(0.02)
        block, flat = block.astype(leaf.dtype), np.empty(leaf.size, leaf.dtype)
        for start in range(0, leaf.size, _DUMMY_PERIOD):
            flat[start : start + _DUMMY_PERIOD] = block[: leaf.size - start]
        return flat.reshape(leaf.shape)

    return jax.tree_util.tree_map_with_path(fill, parameter_shapes(config, dtype))


def array_at(params: Params, path: tuple[str, ...]) -> np.ndarray:
    """The array of a parameter tree that lies under these keys."""
    node: Any = params
    for key in path:
        node = node[key]
    return node


def check_tensors(
    found: dict[str, tuple[int, ...]], wanted: dict[str, Place], config: ModelConfig, source: ModelSource
) -> None:
    """Raise the one ValueError that lists every tensor that is missing, unexpected or misshapen, if any is."""
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted and not is_ignored(name, config)]
    misshapen = [
        f"{name} {list(found[name])} (expected {list(place.shape)})"
        for name, place in wanted.items()
        if name in found and found[name] != place.shape
    ]
    groups = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
    problems = [f"{kind}: {', '.join(sorted(names))}" for kind, names in groups.items() if names]
    if "lm_head.weight" in missing:
        problems.append("lm_head.weight may only be absent with tie_word_embeddings=true in config.json")
    if problems:
        raise ValueError(f"{source.path} does not hold the weights of {config.architecture}: {'; '.join(problems)}")
