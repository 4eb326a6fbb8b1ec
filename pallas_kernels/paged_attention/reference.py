"""Decode attention, written to be read.

This defines what every other implementation must return. It is float32 throughout, and gathers a row's whole table.
"""

from collections.abc import Iterator

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.kv_pages import KVPages
from pallas_kernels.numerics import scaled
from pallas_kernels.scores import MASKED, AttentionCall
from pallas_kernels.support import Support
from pallas_kernels.tuning import DecodeTuning

SUPPORT = Support(hardware="any", proof="tested against a float64 oracle")


def paged_attention(call: AttentionCall, tuning: DecodeTuning | None = None) -> Float[Array, "B N H"]:
    """Attention output of each row's newest token, row after row."""
    kv, group = call.kv, call.group
    key_positions = jnp.arange(call.block_tables.shape[1] * kv.page_size)

    def one_row(row: tuple[Array, Array, Array]) -> Array:
        query, table, length = row
        keys, values = (_heads_first(*pages, group) for pages in _pages_of(kv, call.layer, table))
        distance = length - 1 - key_positions
        visible = call.rule.visible(distance)
        product = jnp.einsum("nh,nth->nt", query.astype(jnp.float32), keys, precision=lax.Precision.HIGHEST)
        slopes = None if call.slopes is None else call.slopes[:, None]
        score = jnp.where(visible, call.rule.score(product, distance, slopes), MASKED)
        weight = jnp.where(visible, jnp.exp(score - score.max(axis=-1, keepdims=True)), 0)
        total = weight.sum(axis=-1, keepdims=True)
        # Values are selected, not multiplied by 0: an unfilled slot may hold NaN or infinity.
        values = jnp.where(visible[:, None], values, 0)
        out = jnp.einsum("nt,nth->nh", weight, values, precision=lax.Precision.HIGHEST)
        return jnp.where(total != 0, out / jnp.where(total != 0, total, 1), 0)

    return lax.map(one_row, (call.q, call.block_tables, call.context_lens)).astype(call.q.dtype)


def _pages_of(kv: KVPages, layer: ArrayLike, table: Int[Array, " M"]) -> Iterator[tuple[Array, Array | None]]:
    for pages, scale in ((kv.k, kv.k_scale), (kv.v, kv.v_scale)):
        yield pages[layer, table], None if scale is None else scale[layer, table]


def _heads_first(
    pages: Shaped[Array, "M S K H"], scale: Float[Array, "M S K"] | None, group: int
) -> Float[Array, "N T H"]:
    tokens = scaled(pages.astype(jnp.float32), None if scale is None else scale[..., None])
    tokens = tokens.reshape(-1, *pages.shape[2:])
    return jnp.repeat(jnp.swapaxes(tokens, 0, 1), group, axis=0)
