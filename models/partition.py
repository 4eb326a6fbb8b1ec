"""How a model is split over devices: which axis of which array, and what one shard computes.

There are two all-reduces per layer and one gather of the selected rows' logits; the bias of a map whose input axis is
split is added once. Which array is split along which axis is said by the family's places.
"""

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.sharding import PartitionSpec as P

from models.config import ModelConfig
from models.layers import Head, Linear, head_scores
from models.places import HEAD

AXIS = "model"
"""The mesh axis that splits a layer."""

POOL_SPEC = P(None, None, None, AXIS)
"""Of `k`, `v` `[L, P, S, K, H]` and scales `[L, P, S, K]` alike: every device has all pages, and its own heads."""

PAGE_SPEC = P(None, None, AXIS)
"""Of one page, `[L, S, K, H]`, and its scales."""


def split_axes(config: ModelConfig) -> dict[str, int | None]:
    """The axis along which each array is split, by paths such as "layers/attention/qkv/kernel"; None: it is not.

    The head counts even where it is tied: a sharded model has it as an array of its own.
    """
    found = {"/".join(place.path): place.split for _, place in config.family.tensors(config)}
    return {"/".join(HEAD): 0, **found}


def param_specs(config: ModelConfig, params: Any) -> Any:
    """A tree like `params`, those of `config` or of its sharded model, with the PartitionSpec of every array."""
    axes = split_axes(config)

    def spec(path: Any, _: Any) -> P:
        axis = axes[jax.tree_util.keystr(path, simple=True, separator="/")]
        return P() if axis is None else P(*[None] * axis, AXIS)

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
    assert config.num_kv_heads % shards == 0, "shard_of divides what sharded_config gives"
    shard = copy.copy(config)
    # Set past the checks: of a shard it is not true that its heads make up the width.
    for name in ("num_heads", "num_kv_heads", "intermediate_size"):
        object.__setattr__(shard, name, getattr(config, name) // shards)
    return shard


@dataclass(frozen=True)
class ShardedModel:
    """The decoder of the whole model `config`, as several devices run it: `apply` as the model has it.

    With `collectives` it is one shard's view, for use inside `shard_map`, and `module` is built from `shard_of(...)`:
    the result of a linear map whose input axis is split is summed over the shards, before the bias is added; the rows
    of a split head are gathered. Without, a compiler divides the model by the shardings of its arguments, and
    `module` is built from `sharded_config(...)` with the mesh, so that kernels run shard by shard.
    """

    module: nn.Module
    config: ModelConfig
    collectives: bool

    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """`module.apply`, without the logits of the rows that pad the vocabulary; the same on every shard, but for
        the pool, of which each has its own part."""
        with nn.intercept_methods(self._intercept):
            return self.module.apply(variables, *args, **kwargs)

    @cached_property
    def _axes(self) -> dict[str, int | None]:
        return split_axes(self.config)

    def _intercept(self, call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        module = context.module
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        if isinstance(module, Head):
            logits = head_scores(args[0], module.get_variable("params", "kernel"))
            if self.collectives:
                logits = lax.all_gather(logits, AXIS, axis=1, tiled=True)
            return logits[:, : self.config.vocab_size]
        if self.collectives and isinstance(module, Linear) and self._is_part_of_a_sum(module):
            return _row_parallel(args[0], module)
        return call(*args, **kwargs)

    def _is_part_of_a_sum(self, module: Linear) -> bool:
        """Whether the input axis is split, the last one of the stacked `[L, out, in]`."""
        return self._axes["/".join((*module.path, "kernel"))] == 2


def _row_parallel(x: jax.Array, module: Linear) -> jax.Array:
    """The map whose input axis is split: each shard has a part of the sum, and the bias comes after it."""
    kernel = module.get_variable("params", "kernel")
    y = lax.psum(jnp.einsum("ti,oi->to", x, kernel), AXIS)
    return y + module.get_variable("params", "bias") if module.use_bias else y
