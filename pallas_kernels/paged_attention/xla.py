"""Decode attention in plain XLA: the path for the CPU.

Lives here: a loop over chunks of a row's tokens with an online softmax.
Promises: cost follows the true lengths; chunks start at fixed positions, so a row's result does not depend on company.
Must not know: how wide a table is beyond its shape. It never gathers a whole one.
"""

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels.kv_pages import KVPages, first_row_of_layer
from pallas_kernels.paged_attention.tuned import DecodeTuning
from pallas_kernels.scores import MASKED, ScoreRule


def paged_attention(
    q: Float[Array, "B N H"],
    kv: KVPages,
    block_tables: Int[Array, "B M"],
    context_lens: Int[Array, " B"],
    layer: ArrayLike,
    rule: ScoreRule,
    alibi_slopes: Float[Array, " N"] | None,
    *,
    tuning: DecodeTuning | None = None,
) -> Float[Array, "B N H"]:
    """Attention output of each row's newest token."""
    chunk = 128 if tuning is None or tuning.block_tokens is None else tuning.block_tokens
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads, group = kv.num_kv_heads, num_heads // kv.num_kv_heads
    k_rows, v_rows = kv.token_rows()
    base = first_row_of_layer(kv, layer)
    slopes = None if alibi_slopes is None else alibi_slopes.reshape(num_kv_heads, group, 1)

    def one_row(row):
        query, table, length = row
        query = query.reshape(num_kv_heads, group, head_dim)

        def body(i, carry):
            peak, total, out = carry
            position = i * chunk + jnp.arange(chunk, dtype=jnp.int32)
            page = table[jnp.minimum(position // kv.page_size, table.shape[0] - 1)]
            rows = base + page * kv.page_size + position % kv.page_size
            distance = length - 1 - position
            visible = rule.visible(distance)
            keys = k_rows[rows].reshape(chunk, num_kv_heads, head_dim)
            values = jnp.where(visible[:, None], v_rows[rows], 0).reshape(chunk, num_kv_heads, head_dim)
            product = jnp.einsum("kgh,tkh->kgt", query, keys, preferred_element_type=jnp.float32)
            score = jnp.where(visible, rule.score(product, distance, slopes), MASKED)
            new_peak = jnp.maximum(peak, score.max(axis=-1))
            decay = jnp.exp(peak - new_peak)
            weight = jnp.where(visible, jnp.exp(score - new_peak[..., None]), 0)
            update = jnp.einsum("kgt,tkh->kgh", weight.astype(values.dtype), values, preferred_element_type=jnp.float32)
            return new_peak, total * decay + weight.sum(axis=-1), out * decay[..., None] + update

        start = (
            jnp.full((num_kv_heads, group), MASKED, jnp.float32),
            jnp.zeros((num_kv_heads, group), jnp.float32),
            jnp.zeros((num_kv_heads, group, head_dim), jnp.float32),
        )
        first = rule.first_visible(length - 1) // chunk
        _, total, out = lax.fori_loop(first, (length + chunk - 1) // chunk, body, start)
        return jnp.where(total > 0, 1 / jnp.where(total > 0, total, 1), 0)[..., None] * out

    return lax.map(one_row, (q, block_tables, context_lens)).reshape(q.shape).astype(q.dtype)
