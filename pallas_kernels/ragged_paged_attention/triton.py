"""Ragged attention for NVIDIA GPUs: one program a block of one row's queries and a kv head, through Triton.

Lives here: the kernel, and the map from programs to blocks of queries.
Promises: slots and table entries past a block's last query are never loaded; softmax is float32.
Must not know: how wide a table is beyond its shape.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels import online_softmax, triton_call
from pallas_kernels.kv_pages import KVPages
from pallas_kernels.online_softmax import SoftmaxState
from pallas_kernels.products import precision_of
from pallas_kernels.quantised import key_dtype, scaled, value_dtype
from pallas_kernels.ragged_paged_attention.rows import place_blocks, place_queries
from pallas_kernels.ragged_paged_attention.tuned import RaggedTuning
from pallas_kernels.scores import ScoreRule
from pallas_kernels.support import Support

SUPPORT = Support(
    hardware="NVIDIA, compute capability 8.0 and up",
    proof="interpreted; compiled",
    tuning=("block_queries", "block_tokens", "num_warps", "num_stages"),
    notes=(triton_call.CONVERSION_NOTE, triton_call.OFFSET_NOTE),
)


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
    interpret: bool = False,
) -> Float[Array, "T N H"]:
    """Attention output of every packed query."""
    SUPPORT.check("triton", kv, q, rule, alibi_slopes, tuning)
    triton_call.check_pool(kv)
    num_queries, num_heads, head_dim = q.shape
    group = num_heads // kv.num_kv_heads
    block_queries, block_tokens, num_warps, num_stages = _sizes(tuning, group, head_dim, key_dtype(q.dtype, kv.k.dtype))
    kernel = partial(
        _attend_block,
        rule=rule,
        page_size=kv.page_size,
        head_dim=head_dim,
        group=group,
        block_queries=block_queries,
        block_tokens=block_tokens,
        has_slopes=alibi_slopes is not None,
    )
    row, first_query = place_blocks(query_starts, num_queries, block_queries)
    slopes = jnp.zeros(num_heads, jnp.float32) if alibi_slopes is None else alibi_slopes.astype(jnp.float32)
    operands = (triton_call.layer_operand(layer), row, first_query, query_starts, context_lens, q)
    (out,) = triton_call.call(
        kernel,
        name="ragged_paged_attention",
        grid=(row.shape[0], kv.num_kv_heads),
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype)],
        num_warps=num_warps,
        num_stages=num_stages,
        interpret=interpret,
    )(*operands, kv, block_tables, slopes)
    # No program writes the queries of nobody, and a fresh output may hold anything.
    owned = place_queries(query_starts, context_lens, num_queries).position >= 0
    return jnp.where(owned[:, None, None], out, 0)


def own_tuning(group: int, head_dim: int, dtype: jnp.dtype) -> RaggedTuning:
    """What this kernel takes where nobody says otherwise: heads a kv head, elements a head, dtype of its products."""
    # Float32 tiles of 64 rows and 128 elements spill registers.
    tile = 32 if dtype == jnp.float32 else 64
    # 64 query rows of 128 elements need 8 warps on A100 to stay clear of register spills.
    num_warps = 8 if head_dim >= 128 else 4
    block_queries = max(1, tile // triton_call.power_of_two(group))
    return RaggedTuning(block_queries=block_queries, block_tokens=tile, num_warps=num_warps, num_stages=3)


def _sizes(tuning: RaggedTuning | None, group: int, head_dim: int, dtype: jnp.dtype) -> tuple[int, int, int, int]:
    tuning, own = tuning or RaggedTuning(), own_tuning(group, head_dim, dtype)
    group_lanes = triton_call.power_of_two(group)
    block_queries, block_tokens = tuning.block_queries or own.block_queries, tuning.block_tokens or own.block_tokens
    num_warps, num_stages = tuning.num_warps or own.num_warps, tuning.num_stages or own.num_stages
    assert block_queries and block_tokens and num_warps and num_stages
    triton_call.check_sizes(block_queries=block_queries, block_tokens=block_tokens, num_warps=num_warps)
    if min(block_queries * group_lanes, block_tokens) < triton_call.SMALLEST_DOT:
        raise ValueError(
            f"block_queries={block_queries} times {group_lanes} heads a group and block_tokens={block_tokens} "
            f"must be at least {triton_call.SMALLEST_DOT}, the smallest Triton dot"
        )
    return block_queries, block_tokens, num_warps, num_stages


def _attend_block(
    layer_ref: Any,
    row_ref: Any,
    first_query_ref: Any,
    start_ref: Any,
    length_ref: Any,
    q_ref: Any,
    kv_ref: Any,
    table_ref: Any,
    slope_ref: Any,
    out_ref: Any,
    *,
    rule: ScoreRule,
    page_size: int,
    head_dim: int,
    group: int,
    block_queries: int,
    block_tokens: int,
    has_slopes: bool,
) -> None:
    block, kv_head = pl.program_id(0), pl.program_id(1)
    layer = layer_ref[0]
    row = plgpu.load(row_ref.at[block])
    first_query = plgpu.load(first_query_ref.at[block])
    row_start = plgpu.load(start_ref.at[row])
    num_queries = plgpu.load(start_ref.at[row + 1]) - row_start
    length = plgpu.load(length_ref.at[row])
    group_lanes = triton_call.power_of_two(group)
    lane = jnp.arange(block_queries * group_lanes)
    member, query_index = lane % group_lanes, first_query + lane // group_lanes
    live_lane = (query_index < num_queries) & (member < group)
    # Lanes of nobody are masked, not clamped: in interpret mode a masked store writes the old value back.
    head = kv_head * group + member
    dim = jnp.arange(triton_call.power_of_two(head_dim, triton_call.SMALLEST_DOT))
    live = live_lane[:, None] & (dim < head_dim)[None, :]
    place = ((row_start + query_index)[:, None], head[:, None], dim[None, :])
    query = plgpu.load(q_ref.at[place], mask=live, other=0.0)
    slope = plgpu.load(slope_ref.at[head], mask=live_lane, other=0.0)[:, None] if has_slopes else None
    query_position = length - num_queries + query_index
    # A block past the last one has first_query == num_queries and so no token to visit.
    end = jnp.minimum(length, length - num_queries + first_query + block_queries)
    end = jnp.where(first_query < num_queries, end, 0)
    first = rule.first_visible(length - num_queries + first_query) // block_tokens * block_tokens
    multiplying, weighing = key_dtype(q_ref.dtype, kv_ref.k.dtype), value_dtype(q_ref.dtype, kv_ref.v.dtype)

    def body(i: Array, state: SoftmaxState) -> SoftmaxState:
        token = first + i * block_tokens + jnp.arange(block_tokens)
        inside = token < end
        page = plgpu.load(table_ref.at[row, token // page_size], mask=inside, other=0)
        slot = (layer, page[:, None], (token % page_size)[:, None], kv_head, dim[None, :])
        k_scale, v_scale = triton_call.load_scales(kv_ref, (layer, page, token % page_size, kv_head), inside)
        loaded = inside[:, None] & (dim < head_dim)[None, :]
        keys = triton_call.load_as(multiplying, kv_ref.k, slot, loaded)
        product = plgpu.dot(query.astype(multiplying), keys.T, precision=precision_of(multiplying))
        distance = query_position[:, None] - token[None, :]
        score = rule.score(scaled(product, k_scale), distance, slope)

        def weigh(weight: Array) -> Array:
            values = triton_call.load_as(weighing, kv_ref.v, slot, loaded)
            return plgpu.dot(scaled(weight, v_scale).astype(weighing), values, precision=precision_of(weighing))

        return online_softmax.absorb(state, score, rule.visible(distance) & inside[None, :], weigh)

    start = online_softmax.start(lane.shape, dim.shape[0])
    state = lax.fori_loop(0, jnp.maximum(pl.cdiv(end - first, block_tokens), 0), body, start)
    plgpu.store(out_ref.at[place], online_softmax.finish(state).astype(out_ref.dtype), mask=live)
