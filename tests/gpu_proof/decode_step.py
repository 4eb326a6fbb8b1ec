"""The whole decode step of a model, as shapes.

Lives here: `decode_step` and `sampler_step`, the two programs of a decode step, with abstract weights and pool.
Promises: the engine's own step function and its own layouts; nothing is allocated.
Must not know: targets, how anything is compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from cases import INT, shaped

from jpaged.core.requests.sampling_params import MAX_LOGPROBS
from jpaged.runtime.sampling.inputs import SAMPLE_FLOATS, SAMPLE_INTS
from jpaged.runtime.sampling.lane_state import init_lane_state
from jpaged.runtime.step import forward, sample_step
from jpaged.runtime.step_shape import StepShape
from models import build_model
from models.families import PRESETS
from models.inputs import StepInputs
from pallas_kernels import KVPages, allocate

ROWS, PAGE_SIZE, MAX_MODEL_LEN = 32, 16, 2048


@dataclass(frozen=True)
class Step:
    """A step to compile: the function, its arguments, the pool and one layer's weights in bytes."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    pool: KVPages
    largest_weight_of_a_layer: int


def decode_step(
    preset: str, *, layers: int | None = None, num_pages: int = 4096, dtype: Any = jnp.bfloat16, rows: int = ROWS
) -> Step:
    """`forward` for rows with one token each, fully unrolled; `layers` None: as many as the model has."""
    config = PRESETS[preset]
    if layers is not None:
        config = replace(config, num_layers=layers)
    model = build_model(config, dtype=dtype, max_model_len=MAX_MODEL_LEN, scan_unroll="full")
    width = MAX_MODEL_LEN // PAGE_SIZE
    shape = StepShape(rows, rows, rows, width, decode=True)
    heads = (config.num_kv_heads, config.head_dim)
    pool = jax.eval_shape(partial(allocate, config.num_layers, num_pages, PAGE_SIZE, *heads, dtype))
    params = jax.eval_shape(model.init, jax.random.key(0), _inputs(rows, width), pool)["params"]
    state = jax.eval_shape(partial(init_lane_state, rows, MAX_MODEL_LEN, config.vocab_size))
    function = partial(forward, model=model, shape=shape, vocab_size=config.vocab_size, max_logprobs=0)
    layer_weights = [leaf.size * leaf.dtype.itemsize // config.num_layers for leaf in jax.tree.leaves(params["layers"])]
    return Step(function, (params, pool, state, shaped(shape.num_ints)), pool, max(layer_weights))


def sampler_step(preset: str, *, rows: int = ROWS) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`sample_step` for the logits of as many rows, and its arguments; the first, the lane state, is donated."""
    vocab_size = PRESETS[preset].vocab_size
    state = jax.eval_shape(partial(init_lane_state, rows, MAX_MODEL_LEN, vocab_size))
    logits = shaped(rows, vocab_size, dtype=jnp.float32)
    ints, floats = shaped(len(SAMPLE_INTS) * rows), shaped(len(SAMPLE_FLOATS) * rows, dtype=jnp.float32)
    return partial(sample_step, vocab_size=vocab_size, max_logprobs=MAX_LOGPROBS), (state, logits, ints, floats)


def _inputs(count: int, width: int) -> StepInputs:
    rows = shaped(count, dtype=INT)
    return StepInputs(rows, rows, rows, shaped(count, width), rows, None, rows)
