"""Self-attention of one layer over the paged pool.

The pool is updated in place (the caller donates it); a pure decode step takes the decode kernel.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from models.inputs import StepInputs
from models.layers import ModelOptions
from models.partition import AXIS, POOL_SPEC
from pallas_kernels import KVPages, beside_attention, paged_attention, ragged_paged_attention, write_kv


def attend_through_pages(
    q: Float[Array, "T N H"],
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    inputs: StepInputs,
    kv_pages: KVPages,
    layer: ArrayLike,
    options: ModelOptions,
    *,
    window: int | None = None,
) -> tuple[Float[Array, "T N H"], KVPages]:
    """Attention of every packed token to its row's tokens up to itself, and the pool with this step's tokens in it.

    `window` counts the token itself; None sees everything. Padding tokens write nothing and give zeros.
    """
    if options.mesh is not None:
        return _attend_by_shard(q, k, v, inputs, kv_pages, layer, options, window)
    how = {"implementation": options.attention_implementation, "interpret": options.interpret}
    writer = beside_attention(options.attention_implementation)
    kv_pages = write_kv(kv_pages, k, v, inputs.slots, layer=layer, implementation=writer, interpret=options.interpret)
    tables, lengths = inputs.block_tables, inputs.context_lens
    if inputs.query_starts is None:
        out = paged_attention(q, kv_pages, tables, lengths, layer=layer, window=window, **how)
    else:
        starts = inputs.query_starts
        out = ragged_paged_attention(q, kv_pages, tables, lengths, starts, layer=layer, window=window, **how)
    return out, kv_pages


def _attend_by_shard(
    q: Array, k: Array, v: Array, inputs: StepInputs, kv_pages: KVPages, layer: ArrayLike, options: ModelOptions,
    window: int | None,
) -> tuple[Array, KVPages]:  # fmt: skip
    """The same, on every device of the mesh with its own heads: a compiler cannot divide a kernel."""
    heads, everywhere = P(None, AXIS), P()

    def attend(q: Array, k: Array, v: Array, inputs: StepInputs, kv_pages: KVPages, layer: Array) -> Any:
        alone = replace(options, mesh=None)
        return attend_through_pages(q, k, v, inputs, kv_pages, layer, alone, window=window)

    return jax.shard_map(
        attend,
        mesh=options.mesh,
        in_specs=(heads, heads, heads, everywhere, POOL_SPEC, everywhere),
        out_specs=(heads, POOL_SPEC),
        check_vma=False,
    )(q, k, v, inputs, kv_pages, jnp.asarray(layer))
