"""Decoder-only models as pure functions of (params, inputs, kv_pages).

Importing `models`, a config or a family's record loads neither jax nor flax nor numpy: the rest is imported when first
asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any, Literal

from models.config import ModelConfig, RopeScaling
from models.families import FAMILIES, PRESETS, register
from models.family import Architecture, Family
from models.source import ModelSource, resolve_source

if TYPE_CHECKING:
    from flax import linen as nn

    from models.inputs import StepInputs
    from models.weights import load_config, load_params

_LAZY = {"StepInputs": "models.inputs", "load_config": "models.weights", "load_params": "models.weights"}

__all__ = [
    "FAMILIES", "PRESETS", "Architecture", "Family", "ModelConfig", "ModelSource", "RopeScaling", "StepInputs",
    "build_model", "load_config", "load_params", "register", "resolve_source",
]  # fmt: skip


def build_model(
    config: ModelConfig,
    *,
    dtype: Any,
    max_model_len: int,
    attention_implementation: str | None = None,
    scan_unroll: "int | Literal['full']" = 1,
    interpret: bool = False,
    mesh: Any = None,
) -> "nn.Module":
    """The Linen module of `config`: `apply({"params": params}, inputs, kv_pages) -> (logits, kv_pages)`.

    `dtype` is that of parameters and activations. `max_model_len` is the longest sequence that will be asked for; it
    fixes the base of dynamic rotary scaling, and a model with learned positions refuses more than it has. `scan_unroll`
    is how many layers each turn of the layer loop holds, or "full"; the parameter tree does not depend on it. `mesh`:
    the one over which a compiler divides the model by its arguments' shardings; not for use inside `shard_map`.
    """
    import jax.numpy as jnp

    from models.layers import ModelOptions

    unroll = config.num_layers if scan_unroll == "full" else scan_unroll
    if not isinstance(unroll, int) or unroll < 1:
        raise ValueError(f"scan_unroll={scan_unroll!r} is not supported; use an integer of at least 1, or 'full'")
    options = ModelOptions(
        dtype=jnp.dtype(dtype),
        max_model_len=max_model_len,
        attention_implementation=attention_implementation,
        scan_unroll=unroll,
        interpret=interpret,
        mesh=mesh,
    )
    family = config.family
    if family.learned_positions and max_model_len > config.max_length:
        raise ValueError(
            f"max_model_len={max_model_len} is more than the {config.max_length} positions this "
            f"{config.architecture.removesuffix('ForCausalLM')} model has learned; "
            f"use max_model_len={config.max_length} or less"
        )
    make: Any = family.module
    if isinstance(make, str):
        module, _, name = make.partition(":")
        make = getattr(importlib.import_module(module), name)
    return make(config, options)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'models' has no attribute {name!r}")
