"""Ragged attention for NVIDIA GPUs: one program per block of one row's queries and kv head, through Triton."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from pallas_kernels import online_softmax, triton_attention, triton_call
from pallas_kernels.ragged_paged_attention.rows import place_blocks, place_queries
from pallas_kernels.scores import AttentionCall
from pallas_kernels.triton_attention import SMALLEST_DOT
from pallas_kernels.tuning import RaggedTuning

SUPPORT = triton_attention.supported("block_queries", "block_tokens", "num_warps", "num_stages")


def ragged_paged_attention(
    call: AttentionCall, tuning: RaggedTuning, *, interpret: bool = False
) -> Float[Array, "T N H"]:
    """Attention output of every packed query."""
    operands, starts, num_queries = triton_attention.operands(call), call.query_starts, call.q.shape[0]
    assert starts is not None
    block_queries, block_tokens, num_warps = _sizes(call, tuning)
    blocks = place_blocks(starts, num_queries, block_queries)
    (out,) = triton_call.call(
        partial(_attend_block, block_queries=block_queries, block_tokens=block_tokens),
        name="ragged_paged_attention",
        grid=(blocks.row.shape[0], call.kv.num_kv_heads),
        out_shape=[jax.ShapeDtypeStruct(call.q.shape, call.q.dtype)],
        num_warps=num_warps,
        num_stages=tuning.num_stages or 3,
        interpret=interpret,
    )(operands, blocks)
    # No program writes the queries of nobody, and a fresh output may hold anything.
    owned = place_queries(starts, call.context_lens, num_queries).position >= 0
    return jnp.where(owned[:, None, None], out, 0)


def _sizes(call: AttentionCall, tuning: RaggedTuning) -> tuple[int, int, int]:
    # Float32 tiles of 64 rows and 128 elements spill registers.
    tile = 32 if call.key_dtype == jnp.float32 else 64
    padded_group = triton_call.power_of_two(call.group)
    block_queries = tuning.block_queries or max(1, tile // padded_group)
    block_tokens = tuning.block_tokens or tile
    # 64 query rows of 128 elements need 8 warps on A100 to stay clear of register spills.
    num_warps = tuning.num_warps or (8 if call.kv.head_dim >= 128 else 4)
    triton_call.check_sizes(block_queries=block_queries, block_tokens=block_tokens, num_warps=num_warps)
    if min(block_queries * padded_group, block_tokens) < SMALLEST_DOT:
        raise ValueError(
            f"block_queries={block_queries} times {padded_group} heads per group and block_tokens={block_tokens} "
            f"must be at least {SMALLEST_DOT}, the smallest Triton dot"
        )
    return block_queries, block_tokens, num_warps


def _attend_block(refs: Any, blocks_ref: Any, out_ref: Any, *, block_queries: int, block_tokens: int) -> None:
    block, kv_head = pl.program_id(0), pl.program_id(1)
    group, head_dim, rule = refs.group, refs.kv.head_dim, refs.rule
    row = plgpu.load(blocks_ref.row.at[block])
    first_query = plgpu.load(blocks_ref.first_query.at[block])
    row_start = plgpu.load(refs.query_starts.at[row])
    num_queries = plgpu.load(refs.query_starts.at[row + 1]) - row_start
    length = plgpu.load(refs.context_lens.at[row])
    padded_group = triton_call.power_of_two(group)
    index = jnp.arange(block_queries * padded_group)
    member, query_index = index % padded_group, first_query + index // padded_group
    owned = (query_index < num_queries) & (member < group)
    # What belongs to nobody is masked, not clamped: in interpret mode a masked store writes the old value back.
    head = kv_head * group + member
    dim = triton_attention.padded_head(head_dim)
    live = owned[:, None] & (dim < head_dim)[None, :]
    place = ((row_start + query_index)[:, None], head[:, None], dim[None, :])
    query = plgpu.load(refs.q.at[place], mask=live, other=0.0)
    slope = triton_attention.load_slopes(refs, head, owned)
    query_position = length - num_queries + query_index
    # A block past the last one has first_query == num_queries and so no token to visit.
    end = jnp.minimum(length, length - num_queries + first_query + block_queries)
    end = jnp.where(first_query < num_queries, end, 0)
    first = rule.first_visible(length - num_queries + first_query) // block_tokens * block_tokens

    def place_keys(token: Array, inside: Array) -> tuple[Array, Array]:
        distance = query_position[:, None] - token[None, :]
        return distance, rule.visible(distance) & inside[None, :]

    state = triton_attention.attend_tokens(refs, query, slope, row, kv_head, first, end, block_tokens, place_keys)
    plgpu.store(out_ref.at[place], online_softmax.finish(state).astype(out_ref.dtype), mask=live)
