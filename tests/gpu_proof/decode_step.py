"""The whole decode step of a model, as shapes.

Lives here: `decode_step`: what the engine compiles for a decode step, with abstract weights and pool.
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

from jpaged.runtime.row_state import init_row_state
from jpaged.runtime.step import forward
from jpaged.runtime.step_shape import StepShape
from models import build_model
from models.config import PRESETS
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


def decode_step(preset: str, *, layers: int | None = None, num_pages: int = 4096, dtype: Any = jnp.bfloat16) -> Step:
    """`forward` for 32 rows with one token each, fully unrolled; `layers` None: as many as the model has."""
    config = PRESETS[preset]
    if layers is not None:
        config = replace(config, num_layers=layers)
    model = build_model(config, dtype=dtype, max_model_len=MAX_MODEL_LEN, scan_unroll="full")
    width = MAX_MODEL_LEN // PAGE_SIZE
    shape = StepShape(ROWS, ROWS, ROWS, width, decode=True)
    heads = (config.num_kv_heads, config.head_dim)
    pool = jax.eval_shape(partial(allocate, config.num_layers, num_pages, PAGE_SIZE, *heads, dtype))
    params = jax.eval_shape(model.init, jax.random.key(0), _inputs(width), pool)["params"]
    state = jax.eval_shape(partial(init_row_state, ROWS, MAX_MODEL_LEN, config.vocab_size))
    function = partial(forward, model=model, shape=shape, vocab_size=config.vocab_size, max_logprobs=0)
    layer_weights = [leaf.size * leaf.dtype.itemsize // config.num_layers for leaf in jax.tree.leaves(params["layers"])]
    return Step(function, (params, pool, state, shaped(shape.num_ints)), pool, max(layer_weights))


def _inputs(width: int) -> StepInputs:
    rows = shaped(ROWS, dtype=INT)
    return StepInputs(rows, rows, rows, shaped(ROWS, width), rows, None, rows)
