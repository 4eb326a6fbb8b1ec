"""Ragged attention in plain XLA: the path for the CPU.

Lives here: a loop over blocks of one row's queries, each a loop over chunks of its tokens; single queries go to decode.
Promises: cost follows the true lengths of queries and contexts.
Must not know: how wide a table is beyond its shape. It never gathers a whole one.
"""

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels import online_softmax
from pallas_kernels.kv_pages import KVPages, rows_of_positions, scales_of_rows
from pallas_kernels.online_softmax import SoftmaxState
from pallas_kernels.paged_attention import DecodeTuning
from pallas_kernels.paged_attention import xla as decode
from pallas_kernels.products import dot
from pallas_kernels.quantised import key_dtype, scaled, value_dtype
from pallas_kernels.ragged_paged_attention.rows import place_queries
from pallas_kernels.ragged_paged_attention.tuned import RaggedTuning
from pallas_kernels.row_sums import least_rows
from pallas_kernels.scores import ScoreRule
from pallas_kernels.support import Support

SUPPORT = Support(hardware="any", proof="tested", tuning=("block_queries", "block_tokens"))

BLOCK_QUERIES = 64
CHUNK_TOKENS = 128


def ragged_paged_attention(
    q: Float[Array, "T N H"],
    kv: KVPages,
    block_tables: Int[Array, "B M"],
    context_lens: Int[Array, " B"],
    query_starts: Int[Array, " B+1"],
    layer: ArrayLike,
    rule: ScoreRule,
    alibi_slopes: Float[Array, " N"] | None,
    *,
    tuning: RaggedTuning | None = None,
) -> Float[Array, "T N H"]:
    """Attention output of every packed query."""
    SUPPORT.check("xla", kv, q, rule, alibi_slopes, tuning)
    block, chunk = _sizes(tuning, q.shape)
    num_queries = query_starts[1:] - query_starts[:-1]
    slopes = None if alibi_slopes is None else alibi_slopes.reshape(kv.num_kv_heads, -1, 1, 1)
    many = num_queries > 1
    blocks_until = jnp.cumsum(jnp.where(many, -(-num_queries // block), 0), dtype=jnp.int32)
    padded = jnp.pad(q, ((0, block), (0, 0), (0, 0)))

    def body(i: Array, out: Array) -> Array:
        row = (blocks_until <= i).sum()
        last_of_row = blocks_until[row]
        blocks_of_row = -(-num_queries[row] // block)
        offset = (i - last_of_row + blocks_of_row) * block
        first = query_starts[row] + offset
        position = context_lens[row] - num_queries[row] + offset
        queries = lax.dynamic_slice_in_dim(padded, first, block)
        result = _attend_block(queries, position, block_tables[row], context_lens[row], kv, layer, rule, slopes, chunk)
        # A block may run past its row's queries. What it writes there is overwritten or masked: blocks go in packed
        # order, decode rows are written after them, and rows of nobody are zeroed last.
        return lax.dynamic_update_slice_in_dim(out, result, first, 0)

    out = lax.fori_loop(0, blocks_until[-1], body, jnp.zeros_like(padded))
    single = num_queries == 1
    starts = query_starts[:-1]
    rows = decode.paged_attention(
        jnp.take(q, starts, axis=0, mode="clip"),
        kv,
        block_tables,
        jnp.where(single, context_lens, 0),
        layer,
        rule,
        alibi_slopes,
        tuning=DecodeTuning(block_tokens=chunk),
    )
    out = out.at[jnp.where(single, starts, out.shape[0])].set(rows, mode="drop")
    owned = place_queries(query_starts, context_lens, q.shape[0]).position >= 0
    return jnp.where(owned[:, None, None], out[: q.shape[0]], 0)


def _sizes(tuning: RaggedTuning | None, shape: tuple[int, ...]) -> tuple[int, int]:
    tuning = tuning or RaggedTuning()
    num_queries, num_heads, _ = shape
    block, chunk = tuning.block_queries or BLOCK_QUERIES, tuning.block_tokens or CHUNK_TOKENS
    return max(least_rows(num_heads * chunk), min(block, num_queries)), chunk


def _attend_block(
    queries: Float[Array, "C N H"],
    first_position: Int[Array, ""],
    table: Int[Array, " M"],
    length: Int[Array, ""],
    kv: KVPages,
    layer: ArrayLike,
    rule: ScoreRule,
    slopes: Float[Array, "K G 1 1"] | None,
    chunk: int,
) -> Float[Array, "C N H"]:
    k_rows, v_rows = kv.token_rows()
    k_scales, v_scales = kv.scale_rows()
    multiplying, weighing = key_dtype(queries.dtype, k_rows.dtype), value_dtype(queries.dtype, v_rows.dtype)
    block, num_heads, head_dim = queries.shape
    num_kv_heads, group = kv.num_kv_heads, num_heads // kv.num_kv_heads
    query = queries.reshape(block, num_kv_heads, group, head_dim).transpose(1, 2, 0, 3)
    query = query.reshape(num_kv_heads, group * block, head_dim)
    query_position = first_position + jnp.arange(block, dtype=jnp.int32)
    end = jnp.minimum(first_position + block, length)

    def body(i: Array, state: SoftmaxState) -> SoftmaxState:
        position = i * chunk + jnp.arange(chunk, dtype=jnp.int32)
        rows = rows_of_positions(kv, table, position, layer)
        filled = position < length
        distance = query_position[:, None] - position
        visible = jnp.tile(rule.visible(distance) & filled, (group, 1))
        keys = jnp.take(k_rows, rows, axis=0, mode="clip").reshape(chunk, num_kv_heads, head_dim)
        # Values are selected, not multiplied by 0: an unfilled slot may hold NaN or infinity.
        values = jnp.where(filled[:, None], jnp.take(v_rows, rows, axis=0, mode="clip"), 0)
        values = values.reshape(chunk, num_kv_heads, head_dim)
        k_scale, v_scale = (
            None if scale is None else scale[:, None]
            for scale in (scales_of_rows(scales, rows, filled) for scales in (k_scales, v_scales))
        )
        product = scaled(dot("kmh,ckh->kmc", query, keys.astype(multiplying)), k_scale)
        product = product.reshape(num_kv_heads, group, block, chunk)
        score = rule.score(product, distance, slopes).reshape(num_kv_heads, group * block, chunk)

        def weigh(weight: Array) -> Array:
            return dot("kmc,ckh->kmh", scaled(weight, v_scale).astype(weighing), values.astype(weighing))

        return online_softmax.absorb(state, score, visible, weigh)

    start = online_softmax.start((num_kv_heads, group * block), head_dim)
    first = rule.first_visible(first_position) // chunk
    out = online_softmax.finish(lax.fori_loop(first, (end + chunk - 1) // chunk, body, start))
    out = out.reshape(num_kv_heads, group, block, head_dim).transpose(2, 0, 1, 3)
    return out.reshape(queries.shape).astype(queries.dtype)
