"""The page pool is the layer loop's carry: a step's memory does not grow with it and donation reuses it."""

import jax
import jax.numpy as jnp
import pytest

from models import PRESETS, StepInputs, build_model
from models.weights import parameter_shapes
from pallas_kernels import KVPages

CONFIGS = {"llama": PRESETS["smollm2-135m"], "opt": PRESETS["opt-125m"]}


def ints(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def compiled_step(family: str, num_pages: int, decode: bool, dtype: str):
    config = CONFIGS[family]
    model = build_model(config, dtype=dtype, max_model_len=64)
    shape = (config.num_layers, num_pages, 16, config.num_kv_heads, config.head_dim)
    pool = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    tokens, starts = (4, None) if decode else (12, ints(5))
    inputs = StepInputs(ints(tokens), ints(tokens), ints(tokens), ints(4, 4), ints(4), starts, ints(4))
    step = jax.jit(lambda p, i, kv: model.apply({"params": p}, i, kv), donate_argnums=2)
    memory = step.lower(parameter_shapes(config, dtype), inputs, KVPages(pool, pool)).compile().memory_analysis()
    return memory, 2 * pool.size * pool.dtype.itemsize


@pytest.mark.parametrize(
    ("family", "decode", "dtype"), [("llama", True, "float32"), ("llama", False, "bfloat16"), ("opt", True, "bfloat16")]
)
def test_temporary_memory_does_not_grow_with_the_pool_and_the_pool_is_aliased(family, decode, dtype):
    small, small_bytes = compiled_step(family, 8, decode, dtype)
    large, large_bytes = compiled_step(family, 8 * 64, decode, dtype)
    assert large_bytes == 64 * small_bytes
    assert abs(large.temp_size_in_bytes - small.temp_size_in_bytes) <= 4096
    assert large.alias_size_in_bytes >= large_bytes
