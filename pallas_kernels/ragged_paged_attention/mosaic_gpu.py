"""Ragged attention for Hopper GPUs through Pallas' Mosaic GPU backend: one program per block of queries and kv head.

Packed queries become blocks of 64 rows and back; the kernel is that of decode with a causal mask.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels import hopper_attention as hopper
from pallas_kernels.mosaic_walk import Walk, Work
from pallas_kernels.ragged_paged_attention.rows import place_blocks, place_queries
from pallas_kernels.scores import AttentionCall
from pallas_kernels.tuning import RaggedTuning

SUPPORT = hopper.supported("block_tokens", "num_stages")


def ragged_paged_attention(
    call: AttentionCall, tuning: RaggedTuning, *, interpret: bool = False
) -> Float[Array, "T N H"]:
    """Attention output of every packed query."""
    hopper.check_device(interpret)
    starts, kv, group = call.query_starts, call.kv, call.group
    assert starts is not None
    num_queries, _, head_dim = call.q.shape
    block, stages = hopper.checked_sizes(tuning.block_tokens, tuning.num_stages, head_dim)
    walk = Walk(call.rule, kv.page_size, kv.num_slots, block, splits=1)
    per_block = hopper.QUERY_ROWS // group
    blocks = place_blocks(starts, num_queries, per_block)
    queries = (starts[blocks.row] + blocks.first_query)[:, None] + jnp.arange(per_block, dtype=jnp.int32)
    packed = jnp.take(call.q, queries, axis=0, mode="clip")
    packed = packed.reshape(-1, per_block, kv.num_kv_heads, group, head_dim).swapaxes(1, 2)
    packed = packed.reshape(-1, kv.num_kv_heads, per_block * group, head_dim)
    packed = jnp.pad(packed, ((0, 0), (0, 0), (0, hopper.QUERY_ROWS - per_block * group), (0, 0)))
    attend = hopper.kernel(
        partial(_program, walk=walk, group=group),
        packed,
        walk,
        stages,
        out_type=jax.ShapeDtypeStruct(packed.shape, jnp.float32),
        grid={"block": packed.shape[0], "kv_head": kv.num_kv_heads},
        interpret=interpret,
    )
    numbers = (jnp.reshape(jnp.asarray(call.layer), (1,)), *blocks, starts, call.context_lens, call.block_tables)
    tokens = kv.by_token()
    return _unpacked(attend(*(x.astype(jnp.int32) for x in numbers), packed, tokens.k, tokens.v), call)


def _unpacked(out: Float[Array, "X K R H"], call: AttentionCall) -> Float[Array, "T N H"]:
    starts, group, num_queries = call.query_starts, call.group, call.q.shape[0]
    assert starts is not None
    num_blocks, num_kv_heads, _, head_dim = out.shape
    per_block = hopper.QUERY_ROWS // group
    places = place_queries(starts, call.context_lens, num_queries)
    query = jnp.arange(num_queries, dtype=jnp.int32) - starts[places.row]
    # Blocks lie in packed order: a row's first is the one after all blocks of the rows before.
    counts = -(-(starts[1:] - starts[:-1]) // per_block)
    first_block = jnp.cumsum(counts, dtype=jnp.int32) - counts
    block = first_block[places.row] + query // per_block
    out = out[:, :, : per_block * group].reshape(num_blocks, num_kv_heads, per_block, group, head_dim)
    rows = out.swapaxes(1, 2).reshape(num_blocks * per_block, num_kv_heads * group, head_dim)
    own = jnp.take(rows, block * per_block + query % per_block, axis=0, mode="clip")
    return jnp.where((places.position >= 0)[:, None, None], own, 0).astype(call.q.dtype)


def _program(
    layer_ref: Any, row_ref: Any, first_query_ref: Any, start_ref: Any, length_ref: Any, table_ref: Any, q_ref: Any,
    k_ref: Any, v_ref: Any, out_ref: Any, *scratch: Any, walk: Walk, group: int,
) -> None:  # fmt: skip
    block, kv_head = lax.axis_index("block"), lax.axis_index("kv_head")
    row, first_query = row_ref[block], first_query_ref[block]
    num_queries = start_ref[row + 1] - start_ref[row]
    before = length_ref[row] - num_queries
    work = _work_of_block(walk, before, num_queries, first_query, hopper.QUERY_ROWS // group)
    local = hopper.Scratch(*scratch)

    def fetch() -> None:
        table = lambda column: table_ref[row, column]  # noqa: E731
        hopper.fetch_blocks(layer_ref[0], table, kv_head, k_ref, v_ref, local, work, walk)

    def distance_of(token: Array) -> Array:
        index = plgpu.broadcasted_iota(jnp.int32, token.shape, 0, layout=plgpu.Layout.WGMMA)
        return before + first_query + lax.div(index, jnp.full_like(index, group)) - token

    hopper.run_warpgroups(
        local,
        work,
        walk,
        fetch=fetch,
        distance_of=distance_of,
        q_ref=q_ref.at[block, kv_head],
        outputs=[(local.out, out_ref.at[block, kv_head])],
    )


def _work_of_block(walk: Walk, before: Array, num_queries: Array, first_query: Array, block_queries: int) -> Work:
    """The tokens that some query of a block sees; none for a block past its row's queries."""
    last = before + jnp.minimum(num_queries, first_query + block_queries)
    end = jnp.where(first_query < num_queries, last, 0)
    visible_from = jnp.minimum(walk.rule.first_visible(jnp.maximum(before + first_query, 0)), end)
    first = lax.div(visible_from, jnp.int32(walk.block))
    return Work(end, visible_from, first, lax.div(end + walk.block - 1, jnp.int32(walk.block)) - first)
