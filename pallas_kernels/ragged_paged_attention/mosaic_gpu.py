"""Ragged attention for Hopper GPUs through Pallas' Mosaic GPU backend: one program a block of queries and a kv head.

Lives here: how packed queries become blocks of 64 rows and back; the kernel is that of decode with a causal mask.
Promises: table entries outside a block's visible pages are never read, nor is anything invisible used.
Must not know: copies, tensor cores.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels import mosaic_call
from pallas_kernels.kv_pages import KVPages
from pallas_kernels.paged_attention import mosaic_gpu as decode
from pallas_kernels.paged_attention import mosaic_hopper as hopper
from pallas_kernels.paged_attention.mosaic_walk import Walk, Work
from pallas_kernels.ragged_paged_attention.rows import place_blocks, place_queries
from pallas_kernels.ragged_paged_attention.tuned import RaggedTuning
from pallas_kernels.scores import ScoreRule
from pallas_kernels.support import Support

SUPPORT = Support(
    hardware="compute capability 9.0",
    proof="interpreted with race detection; compiled",
    pool_dtypes=("bfloat16", "float16"),
    page_size_multiple=8,
    head_dims=(64, 128),
    max_group=hopper.QUERY_ROWS,
    score_options=("window", "soft_cap"),
    tuning=("block_tokens", "num_stages"),
    query_dtype_is_pool_dtype=True,
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
    if not interpret and (capability := mosaic_call.compute_capability()) != mosaic_call.HOPPER:
        raise NotImplementedError(f"implementation='mosaic_gpu' has ragged attention for Hopper only, not {capability}")
    SUPPORT.check("mosaic_gpu", kv, q, rule, alibi_slopes, tuning)
    tuning = tuning or RaggedTuning()
    block, stages = decode.checked_sizes("Hopper", tuning.block_tokens, tuning.num_stages, kv.head_dim)
    num_queries, num_heads, head_dim = q.shape
    group = num_heads // kv.num_kv_heads
    walk = Walk(rule, kv.page_size, kv.num_slots, block, splits=1)
    block_queries = hopper.QUERY_ROWS // group
    row, first_query = place_blocks(query_starts, num_queries, block_queries)
    packed = jnp.take(q, _queries_of_blocks(row, first_query, query_starts, block_queries), axis=0, mode="clip")
    packed = packed.reshape(row.shape[0], block_queries, kv.num_kv_heads, group, head_dim).swapaxes(1, 2)
    packed = packed.reshape(row.shape[0], kv.num_kv_heads, block_queries * group, head_dim)
    packed = jnp.pad(packed, ((0, 0), (0, 0), (0, hopper.QUERY_ROWS - block_queries * group), (0, 0)))
    numbers = [jnp.reshape(jnp.asarray(layer), (1,)), row, first_query, query_starts, context_lens, block_tables]
    arrays = [*(x.astype(jnp.int32) for x in numbers), packed, *kv.token_rows()]
    out = _attend_blocks(arrays, walk, stages, group, interpret)
    return _unpacked(out, group, row, first_query, query_starts, context_lens, q)


def _queries_of_blocks(
    row: Int[Array, " X"], first_query: Int[Array, " X"], query_starts: Int[Array, " B+1"], block_queries: int
) -> Int[Array, "X C"]:
    return (query_starts[row] + first_query)[:, None] + jnp.arange(block_queries, dtype=jnp.int32)


def _unpacked(
    out: Float[Array, "X K R H"], group: int, row: Int[Array, " X"], first_query: Int[Array, " X"],
    query_starts: Int[Array, " B+1"], context_lens: Int[Array, " B"], q: Float[Array, "T N H"],
) -> Float[Array, "T N H"]:  # fmt: skip
    num_queries, _, head_dim = q.shape
    num_blocks, num_kv_heads, _, _ = out.shape
    block_queries = hopper.QUERY_ROWS // group
    places = place_queries(query_starts, context_lens, num_queries)
    query = jnp.arange(num_queries, dtype=jnp.int32) - query_starts[places.row]
    # Blocks lie in packed order: a row's first is the one after all blocks of the rows before.
    counts = -(-(query_starts[1:] - query_starts[:-1]) // block_queries)
    first_block = jnp.cumsum(counts, dtype=jnp.int32) - counts
    block = first_block[places.row] + query // block_queries
    out = out[:, :, : block_queries * group].reshape(num_blocks, num_kv_heads, block_queries, group, head_dim)
    rows = out.swapaxes(1, 2).reshape(num_blocks * block_queries, num_kv_heads * group, head_dim)
    taken = jnp.take(rows, block * block_queries + query % block_queries, axis=0, mode="clip")
    return jnp.where((places.position >= 0)[:, None, None], taken, 0).astype(q.dtype)


def _attend_blocks(
    arrays: list[Array], walk: Walk, stages: int, group: int, interpret: bool
) -> Float[Array, "X K R H"]:
    packed = arrays[-3]
    num_blocks, num_kv_heads, _, head_dim = packed.shape
    return plgpu.kernel(
        partial(_program, walk=walk, stages=stages, group=group),
        out_type=jax.ShapeDtypeStruct(packed.shape, jnp.float32),
        scratch_types=hopper.scratch_types(packed.dtype, head_dim, walk, stages),
        grid=(num_blocks, num_kv_heads),
        grid_names=("block", "kv_head"),
        num_threads=2,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=walk.rule.soft_cap is None),
        interpret=mosaic_call.interpreter(interpret),
    )(*arrays)


def _program(
    layer_ref: Any, row_ref: Any, first_query_ref: Any, start_ref: Any, length_ref: Any, table_ref: Any, q_ref: Any,
    k_ref: Any, v_ref: Any, out_ref: Any, *scratch: Any, walk: Walk, stages: int, group: int,
) -> None:  # fmt: skip
    block, kv_head = lax.axis_index("block"), lax.axis_index("kv_head")
    row, first_query = row_ref[block], first_query_ref[block]
    num_queries = start_ref[row + 1] - start_ref[row]
    before = length_ref[row] - num_queries
    work = _work_of_block(walk, before, num_queries, first_query, hopper.QUERY_ROWS // group)
    local = hopper.Scratch(*scratch)

    @pl.when(lax.axis_index("warpgroup") == 1)
    def _fetch() -> None:
        hopper.fetch_blocks(
            layer_ref[0], lambda column: table_ref[row, column], kv_head, k_ref, v_ref, local, work, walk, stages
        )

    def distance_of(token: Array) -> Array:
        layout = plgpu.Layout.WGMMA
        lane = plgpu.broadcasted_iota(jnp.int32, token.shape, 0, layout=layout)
        return before + first_query + lax.div(lane, jnp.full_like(lane, group)) - token

    @pl.when(lax.axis_index("warpgroup") == 0)
    def _compute() -> None:
        plgpu.copy_gmem_to_smem(q_ref.at[block, kv_head], local.q, local.q_ready)
        plgpu.barrier_wait(local.q_ready)
        hopper.attend_blocks(local, work, walk, stages, distance_of)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(local.out, out_ref.at[block, kv_head])
        plgpu.wait_smem_to_gmem(0)


def _work_of_block(walk: Walk, before: Array, num_queries: Array, first_query: Array, block_queries: int) -> Work:
    """The tokens that some query of a block sees; none for a block past its row's queries."""
    last = before + jnp.minimum(num_queries, first_query + block_queries)
    end = jnp.where(first_query < num_queries, last, 0)
    visible_from = jnp.minimum(walk.rule.first_visible(jnp.maximum(before + first_query, 0)), end)
    first = lax.div(visible_from, jnp.int32(walk.block))
    return Work(end, visible_from, first, lax.div(end + walk.block - 1, jnp.int32(walk.block)) - first)
