"""Decode attention for NVIDIA GPUs without Hopper's units, through Pallas' Mosaic GPU backend.

Lives here: the kernel, one warpgroup a row, kv head and split: cp.async into a ring of stages, mma.sync out of it.
Promises: table entries outside a row's visible pages are never read, nor is anything invisible used, though whole
pieces of pages are fetched.
Must not know: how splits are merged; how wide a table is beyond its shape.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels import mosaic_call
from pallas_kernels.paged_attention.mosaic_walk import Walk, Work, split_of_row
from pallas_kernels.scores import MASKED

QUERY_ROWS = 16
"""Rows of an mma.sync: a group's query heads, the rest is never looked at."""

TILE_COLUMNS = 32
_IN_BOUNDS = plgpu.OOBFillMode.PROMISE_IN_BOUNDS


def attend_splits(
    q: Float[Array, "B K G H"], layer: Array, tables: Array, lengths: Array, k_rows: Array, v_rows: Array,
    walk: Walk, stages: int,
) -> tuple[Float[Array, "B X K G H"], Float[Array, "B X K G"]]:  # fmt: skip
    """Normalised output and log total of every split of every row; `G` is padded to QUERY_ROWS."""
    num_rows, num_kv_heads, group, head_dim = q.shape
    assert group == QUERY_ROWS
    out_shape = (num_rows, walk.splits, num_kv_heads, group, head_dim)
    tiled = partial(plgpu.SMEM, dtype=q.dtype, transforms=mosaic_call.tiles(TILE_COLUMNS))
    return plgpu.kernel(
        partial(_program, walk=walk, stages=stages),
        out_type=[
            jax.ShapeDtypeStruct(out_shape, jnp.float32),
            jax.ShapeDtypeStruct(out_shape[:-1], jnp.float32),
        ],
        scratch_types=[
            tiled((QUERY_ROWS, head_dim)),
            tiled((stages, walk.block, head_dim)),
            tiled((stages, walk.block, head_dim)),
            tiled((QUERY_ROWS, walk.block)),
        ],
        grid=(num_rows, num_kv_heads, walk.splits),
        grid_names=("row", "kv_head", "split"),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(layer, tables, lengths, q, k_rows, v_rows)


def smem_bytes(head_dim: int, block: int, stages: int) -> int:
    """Shared memory of one program: queries, keys and values of every stage, weights."""
    return 2 * (QUERY_ROWS * head_dim + 2 * stages * block * head_dim + QUERY_ROWS * block)


def _program(
    layer_ref: Any, table_ref: Any, length_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any,
    log_total_ref: Any, q_smem: Any, k_smem: Any, v_smem: Any, weight_smem: Any, *, walk: Walk, stages: int,
) -> None:  # fmt: skip
    row, kv_head, split = lax.axis_index("row"), lax.axis_index("kv_head"), lax.axis_index("split")
    layer = layer_ref[0]
    work = split_of_row(walk, length_ref[row], split)
    head_dim = q_smem.shape[1]
    columns = pl.ds(pl.multiple_of(kv_head * head_dim, head_dim), head_dim)

    def page_of(column: Array) -> Array:
        # The first stages are filled whatever the length, and the table of an empty row may hold anything.
        return jnp.where(work.length > 0, table_ref[row, column], 0)

    def fetch(i: Array) -> None:
        stage = lax.rem(i, jnp.int32(stages))
        for j in range(walk.pieces_per_block):
            start = walk.first_row_of_piece(layer, page_of, work, i, j)
            source, target = (pl.ds(start, walk.piece), columns), (stage, pl.ds(j * walk.piece, walk.piece))
            plgpu.copy_gmem_to_smem(k_ref.at[source], k_smem.at[target], oob_mode=_IN_BOUNDS)
            plgpu.copy_gmem_to_smem(v_ref.at[source], v_smem.at[target], oob_mode=_IN_BOUNDS)

    plgpu.copy_gmem_to_smem(q_ref.at[row, kv_head], q_smem, oob_mode=_IN_BOUNDS)
    # Blocks past the last one fetch its pages again: every turn of the ring then has the same number of copies.
    for i in range(stages - 1):
        fetch(jnp.int32(i))
    total_copies = (stages - 1) * 2 * walk.pieces_per_block
    plgpu.wait_gmem_to_smem(total_copies)
    out, log_total = _attend(q_smem, k_smem, v_smem, weight_smem, fetch, work, walk, stages)
    plgpu.wait_gmem_to_smem(0)
    plgpu.store(out_ref.at[row, split, kv_head], out, optimized=False)
    plgpu.store(log_total_ref.at[row, split, kv_head], log_total, optimized=False)


def _attend(
    q_smem: Any, k_smem: Any, v_smem: Any, weight_smem: Any, fetch: Any, work: Work, walk: Walk, stages: int
) -> tuple[Array, Array]:
    acc, lhs, rhs = (
        layout(q_smem.dtype, m_warps=1) for layout in (plgpu.Layout.MMA_ACC, plgpu.Layout.MMA_LHS, plgpu.Layout.MMA_RHS)
    )
    head_dim = q_smem.shape[1]
    query = plgpu.load(q_smem, layout=lhs, optimized=False)
    start = (
        plgpu.layout_cast(jnp.full((QUERY_ROWS,), MASKED, jnp.float32), acc.reduce(1)),
        plgpu.layout_cast(jnp.zeros((QUERY_ROWS,), jnp.float32), acc.reduce(1)),
        plgpu.layout_cast(jnp.zeros((QUERY_ROWS, head_dim), jnp.float32), acc),
    )
    copies_in_flight = (stages - 2) * 2 * walk.pieces_per_block

    def body(i: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        peak, total, out = state
        stage = lax.rem(i, jnp.int32(stages))
        # The wait is a barrier too: after it no warp reads the stage of the turn before, which is filled next.
        plgpu.wait_gmem_to_smem(copies_in_flight)
        fetch(i + stages - 1)
        keys = plgpu.load(k_smem.at[stage].transpose((1, 0)), layout=rhs, optimized=False)
        zeros = plgpu.layout_cast(jnp.zeros((QUERY_ROWS, walk.block), jnp.float32), acc)
        product = plgpu.mma(zeros, query, keys)
        token = work.first_token(walk, i) + plgpu.broadcasted_iota(jnp.int32, product.shape, 1, layout=acc)
        score = jnp.where(work.visible(token), walk.rule.score(product, work.length - 1 - token, None), MASKED)
        new_peak = jnp.maximum(peak, score.max(axis=1))
        decay = jnp.exp(peak - new_peak)
        weight = jnp.exp(score - _over_columns(new_peak, score))
        weight_smem[...] = weight.astype(weight_smem.dtype)
        weight_lhs = plgpu.load(weight_smem, layout=lhs, optimized=False)
        values = plgpu.load(v_smem.at[stage], layout=rhs, optimized=False)
        token = work.first_token(walk, i) + plgpu.broadcasted_iota(jnp.int32, values.shape, 0, layout=rhs)
        # Zeroed, not weighted by 0: an unfilled slot may hold NaN or infinity.
        values = jnp.where(work.visible(token), values, jnp.zeros_like(values))
        out = plgpu.mma(out * _over_columns(decay, out), weight_lhs, values)
        return new_peak, total * decay + weight.sum(axis=1), out

    peak, total, out = lax.fori_loop(0, work.num_blocks, body, start)
    divisor = jnp.where(total > 0, total, 1.0)
    return out / _over_columns(divisor, out), jnp.where(total > 0, peak + jnp.log(divisor), MASKED)


def _over_columns(rows: Array, like: Array) -> Array:
    return lax.broadcast_in_dim(rows, like.shape, [0])
