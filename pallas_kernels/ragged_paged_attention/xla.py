"""Ragged attention in plain XLA: the path for the CPU.

A loop over blocks of one row's queries, each a loop over chunks of its tokens; single queries go to decode. Its cost
follows the true lengths of queries and contexts: a whole table is never gathered.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels import online_softmax
from pallas_kernels.kv_pages import read_tokens, token_indices
from pallas_kernels.numerics import dot, least_rows, scaled
from pallas_kernels.online_softmax import SoftmaxState
from pallas_kernels.paged_attention import xla as decode
from pallas_kernels.ragged_paged_attention.rows import place_queries
from pallas_kernels.scores import AttentionCall
from pallas_kernels.support import Support
from pallas_kernels.tuning import DecodeTuning, RaggedTuning

SUPPORT = Support(hardware="any", proof="tested", tuning=("block_queries", "block_tokens"))

BLOCK_QUERIES = 64
CHUNK_TOKENS = 128


def ragged_paged_attention(call: AttentionCall, tuning: RaggedTuning) -> Float[Array, "T N H"]:
    """Attention output of every packed query."""
    q, context_lens, query_starts = call.q, call.context_lens, call.query_starts
    assert query_starts is not None
    chunk = tuning.block_tokens or CHUNK_TOKENS
    block = max(least_rows(q.shape[1] * chunk), min(tuning.block_queries or BLOCK_QUERIES, q.shape[0]))
    num_queries = query_starts[1:] - query_starts[:-1]
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
        result = _attend_block(call, lax.dynamic_slice_in_dim(padded, first, block), row, position, chunk)
        # A block may run past its row's queries. What it writes there is overwritten or masked: blocks go in packed
        # order, decode rows are written after them, and rows of nobody are zeroed last.
        return lax.dynamic_update_slice_in_dim(out, result, first, 0)

    out = lax.fori_loop(0, blocks_until[-1], body, jnp.zeros_like(padded))
    single = num_queries == 1
    starts = query_starts[:-1]
    rows = call._replace(
        q=jnp.take(q, starts, axis=0, mode="clip"),
        context_lens=jnp.where(single, context_lens, 0),
        query_starts=None,
    )
    decoded = decode.paged_attention(rows, DecodeTuning(block_tokens=chunk))
    out = out.at[jnp.where(single, starts, out.shape[0])].set(decoded, mode="drop")
    owned = place_queries(query_starts, context_lens, q.shape[0]).position >= 0
    return jnp.where(owned[:, None, None], out[: q.shape[0]], 0)


def _attend_block(
    call: AttentionCall, queries: Float[Array, "C N H"], row: Int[Array, ""], first_position: Int[Array, ""], chunk: int
) -> Float[Array, "C N H"]:
    kv, rule, length, table = call.kv, call.rule, call.context_lens[row], call.block_tables[row]
    block, _, head_dim = queries.shape
    num_kv_heads, group = kv.num_kv_heads, call.group
    slopes = None if call.slopes is None else call.slopes.reshape(num_kv_heads, -1, 1, 1)
    query = queries.reshape(block, num_kv_heads, group, head_dim).transpose(1, 2, 0, 3)
    query = query.reshape(num_kv_heads, group * block, head_dim)
    query_position = first_position + jnp.arange(block, dtype=jnp.int32)
    end = jnp.minimum(first_position + block, length)

    def body(i: Array, state: SoftmaxState) -> SoftmaxState:
        position = i * chunk + jnp.arange(chunk, dtype=jnp.int32)
        filled = position < length
        distance = query_position[:, None] - position
        visible = jnp.tile(rule.visible(distance) & filled, (group, 1))
        tokens = read_tokens(kv, token_indices(kv, table, position, call.layer), filled)
        keys, values = (array.reshape(chunk, num_kv_heads, head_dim) for array in tokens[:2])
        k_scale, v_scale = (None if scale is None else scale[:, None] for scale in tokens[2:])
        product = scaled(dot("kmh,ckh->kmc", query, keys.astype(call.key_dtype)), k_scale)
        product = product.reshape(num_kv_heads, group, block, chunk)
        score = rule.score(product, distance, slopes).reshape(num_kv_heads, group * block, chunk)

        def weigh(weight: Array) -> Array:
            weight = scaled(weight, v_scale).astype(call.value_dtype)
            return dot("kmc,ckh->kmh", weight, values.astype(call.value_dtype))

        return online_softmax.absorb(state, score, visible, weigh)

    start = online_softmax.start((num_kv_heads, group * block), head_dim)
    first = rule.first_visible(first_position) // chunk
    out = online_softmax.finish(lax.fori_loop(first, (end + chunk - 1) // chunk, body, start))
    out = out.reshape(num_kv_heads, group, block, head_dim).transpose(2, 0, 1, 3)
    return out.reshape(queries.shape).astype(queries.dtype)
