"""How a model is split over devices: which axis of which array, and what one shard computes.

Lives here: the partition rules of each family, the config of one shard, ShardedModel.
Promises: two all-reduces a layer and one gather of the selected rows' logits; biases of row-split maps are added once.
Must not know: how many devices there are, meshes, the page layout beyond its head axis, how weights are read.
"""

import copy
import re
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.sharding import PartitionSpec as P

from models.config import ModelConfig
from models.layers import Head, Linear, head_scores

AXIS = "model"
"""The mesh axis that splits a layer."""

POOL_SPEC = P(None, None, None, AXIS)
"""Of `k`, `v` `[L, P, S, K, H]` and scales `[L, P, S, K]` alike: every device has all pages, and its own heads."""
PAGE_SPEC = P(None, None, AXIS)
"""Of one page, `[L, S, K, H]`, and its scales."""

# The first pattern that is found in an array's path decides. Arrays are stacked, so axis 0 is the layer. Fused maps
# begin with the axis that is split ([K, G + 2, H], [N, 3, H], [F, 2]): a slice is a shard's own q, k, v or gate and up.
_ATTENTION = (
    (r"attention/qkv/(kernel|bias)$", P(None, AXIS)),
    (r"attention/out/kernel$", P(None, None, AXIS)),
)
# A vocabulary table that is looked up is on every device: split, each lookup would need a collective of its own.
_REST = ((r"^head/kernel$", P(AXIS)), (r"", P()))
RULES: dict[str, tuple[tuple[str, P], ...]] = {
    "llama": (
        *_ATTENTION,
        (r"mlp/gate_up/(kernel|bias)$", P(None, AXIS)),
        (r"mlp/down/kernel$", P(None, None, AXIS)),
        *_REST,
    ),
    "opt": (
        *_ATTENTION,
        (r"fc1/(kernel|bias)$", P(None, AXIS)),
        (r"fc2/kernel$", P(None, None, AXIS)),
        *_REST,
    ),
}


def spec_of(family: str, path: str) -> P:
    """The PartitionSpec of the parameter at `path`, such as "layers/attention/qkv/kernel"."""
    return next(spec for pattern, spec in RULES[family] if re.search(pattern, path))


def param_specs(family: str, params: Any) -> Any:
    """A tree like `params`, with the PartitionSpec of every array."""

    def spec(path: Any, _: Any) -> P:
        return spec_of(family, jax.tree_util.keystr(path, simple=True, separator="/"))

    return jax.tree_util.tree_map_with_path(spec, params)


def shard_counts(config: ModelConfig, most: int = 64) -> list[int]:
    """The numbers of shards, up to `most`, that a model can be split into."""
    return [n for n in range(1, most + 1) if _divides(config, n)]


def _divides(config: ModelConfig, shards: int) -> bool:
    kv_heads = config.num_kv_heads
    whole = config.num_heads % shards == 0 and config.intermediate_size % shards == 0
    return whole and (kv_heads % shards == 0 or shards % kv_heads == 0)


def check_shards(config: ModelConfig, shards: int) -> None:
    """Raise ValueError, naming the numbers that do, if the model's heads or its ffn do not divide into `shards`."""
    if not _divides(config, shards):
        raise ValueError(
            f"tensor_parallel_size={shards}: {config.num_heads} heads, {config.num_kv_heads} kv heads and an ffn of "
            f"{config.intermediate_size} do not divide into {shards} equal shards; use one of "
            f"{', '.join(map(str, shard_counts(config)))}"
        )


def sharded_config(config: ModelConfig, shards: int) -> ModelConfig:
    """The model that the shards make up together.

    Where there are fewer kv heads than shards each is repeated, in weights and pool. The head is an array of its own,
    since a table that is looked up is whole on every device and a head is split.
    """
    check_shards(config, shards)
    if shards == 1:
        return config
    return replace(config, num_kv_heads=max(config.num_kv_heads, shards), tie_word_embeddings=False)


def kv_repeats(config: ModelConfig, shards: int) -> int:
    """How often each kv head of the checkpoint occurs in the sharded model."""
    return max(1, shards // config.num_kv_heads)


def padded_vocab(config: ModelConfig, shards: int) -> int:
    """Rows of the split head: the vocabulary, and rows of zeros up to a multiple of `shards`."""
    return -(-config.vocab_size // shards) * shards


def shard_of(config: ModelConfig, shards: int) -> ModelConfig:
    """What one of `shards` shards of `sharded_config` computes: its share of the heads and of the ffn."""
    assert config.num_kv_heads % shards == 0, "shard_of takes what sharded_config gives"
    shard = copy.copy(config)
    # Set past the checks: of a shard it is not true that its heads make up the width.
    for name in ("num_heads", "num_kv_heads", "intermediate_size"):
        object.__setattr__(shard, name, getattr(config, name) // shards)
    return shard


@dataclass(frozen=True)
class ShardedModel:
    """One shard's view of a model, for use inside `shard_map`: `apply` as the model has it, with its collectives.

    `module` is built from `shard_of(...)`. The rules decide: the result of a linear map whose input axis is split is
    summed over the shards, before the bias is added; the rows of a split head are gathered.
    """

    module: nn.Module
    family: str
    vocab_size: int

    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """`module.apply`, shard by shard; every shard gets the same result, and its own part of the pool."""
        with nn.intercept_methods(self._intercept):
            return self.module.apply(variables, *args, **kwargs)

    def _intercept(self, call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        module = context.module
        if context.method_name != "__call__" or not isinstance(module, Linear | Head):
            return call(*args, **kwargs)
        spec = spec_of(self.family, "/".join((*module.path, "kernel")))
        if isinstance(module, Head):
            return self._gathered(head_scores(args[0], module.get_variable("params", "kernel")))
        if AXIS not in spec or spec.index(AXIS) == 1:
            return call(*args, **kwargs)
        return _row_parallel(args[0], module)

    def _gathered(self, logits: jax.Array) -> jax.Array:
        return lax.all_gather(logits, AXIS, axis=1, tiled=True)[:, : self.vocab_size]


@dataclass(frozen=True)
class AnnotatedModel:
    """A whole model for a compiler that divides it up by the shardings of its arguments; its collectives are the
    compiler's choice. `module` is built from `sharded_config(...)` with the mesh, so kernels run shard by shard."""

    module: nn.Module
    vocab_size: int

    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """`module.apply`, without the logits of the rows that pad the vocabulary."""
        with nn.intercept_methods(self._intercept):
            return self.module.apply(variables, *args, **kwargs)

    def _intercept(self, call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        module = context.module
        if context.method_name != "__call__" or not isinstance(module, Head):
            return call(*args, **kwargs)
        return head_scores(args[0], module.get_variable("params", "kernel"))[:, : self.vocab_size]


def _row_parallel(x: jax.Array, module: Linear) -> jax.Array:
    """The map whose input axis is split: each shard has a part of the sum, and the bias comes after it."""
    kernel = module.get_variable("params", "kernel")
    y = lax.psum(jnp.einsum("ti,oi->to", x, kernel), AXIS)
    return y + module.get_variable("params", "bias") if module.use_bias else y
