"""Attention for Hopper GPUs; decode: one program a row, kv head and split; through Pallas' Mosaic GPU backend.

Lives here: the kernel: one warpgroup fetches pages by TMA, one multiplies them by wgmma. Ragged attention uses both.
Promises: table entries outside a row's visible pages are never read, nor is anything invisible used, though whole
pieces of pages are fetched; what is interpreted is what is compiled.
Must not know: how splits are merged; how wide a table is beyond its shape.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels import mosaic_call
from pallas_kernels.paged_attention.mosaic_walk import Walk, Work, split_of_row
from pallas_kernels.scores import MASKED

QUERY_ROWS = 64
"""Rows of a wgmma: a group's query heads, the rest is never stored."""


class Scratch(NamedTuple):
    """Shared memory and barriers of one program."""

    q: Any
    k: Any
    v: Any
    weight: Any
    out: Any
    log_total: Any
    q_ready: Any
    k_ready: Any
    v_ready: Any
    k_free: Any
    v_free: Any


def attend_splits(
    q: Float[Array, "B K G H"], layer: Array, tables: Array, lengths: Array, k_rows: Array, v_rows: Array,
    walk: Walk, stages: int, interpret: bool,
) -> tuple[Float[Array, "B X K G H"], Float[Array, "B X K G"]]:  # fmt: skip
    """Normalised output and log total of every split of every row; `G` is padded to a multiple of 8."""
    num_rows, num_kv_heads, group, head_dim = q.shape
    out_shape = (num_rows, walk.splits, num_kv_heads, group, head_dim)
    return plgpu.kernel(
        partial(_program, walk=walk, stages=stages),
        out_type=[
            jax.ShapeDtypeStruct(out_shape, jnp.float32),
            jax.ShapeDtypeStruct(out_shape[:-1], jnp.float32),
        ],
        scratch_types=scratch_types(q.dtype, head_dim, walk, stages),
        grid=(num_rows, num_kv_heads, walk.splits),
        grid_names=("row", "kv_head", "split"),
        num_threads=2,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=walk.rule.soft_cap is None),
        interpret=mosaic_call.interpreter(interpret),
    )(layer, tables, lengths, q, k_rows, v_rows)


def smem_bytes(head_dim: int, block: int, stages: int) -> int:
    """Shared memory of one program: queries, keys and values of every stage, weights, output."""
    return 2 * (QUERY_ROWS * head_dim + 2 * stages * block * head_dim + QUERY_ROWS * block) + 4 * QUERY_ROWS * (
        head_dim + 1
    )


def scratch_types(dtype: Any, head_dim: int, walk: Walk, stages: int) -> Scratch:
    """What `fetch_blocks` and `attend_blocks` share."""
    tiled = partial(plgpu.SMEM, dtype=dtype, transforms=mosaic_call.tiles(64))
    pieces = walk.pieces_per_block
    return Scratch(
        q=tiled((QUERY_ROWS, head_dim)),
        k=tiled((stages, walk.block, head_dim)),
        v=tiled((stages, walk.block, head_dim)),
        weight=tiled((QUERY_ROWS, walk.block)),
        out=plgpu.SMEM((QUERY_ROWS, head_dim), jnp.float32),
        log_total=plgpu.SMEM((QUERY_ROWS,), jnp.float32),
        q_ready=plgpu.Barrier(),
        k_ready=plgpu.Barrier(num_arrivals=pieces, num_barriers=stages),
        v_ready=plgpu.Barrier(num_arrivals=pieces, num_barriers=stages),
        k_free=plgpu.Barrier(num_barriers=stages),
        v_free=plgpu.Barrier(num_barriers=stages),
    )


def _program(
    layer_ref: Any, table_ref: Any, length_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any,
    log_total_ref: Any, *scratch: Any, walk: Walk, stages: int,
) -> None:  # fmt: skip
    row, kv_head, split = lax.axis_index("row"), lax.axis_index("kv_head"), lax.axis_index("split")
    work = split_of_row(walk, length_ref[row], split)
    local = Scratch(*scratch)

    @pl.when(lax.axis_index("warpgroup") == 1)
    def _fetch() -> None:
        table = lambda column: table_ref[row, column]  # noqa: E731
        fetch_blocks(layer_ref[0], table, kv_head, k_ref, v_ref, local, work, walk, stages)

    @pl.when(lax.axis_index("warpgroup") == 0)
    def _compute() -> None:
        group = q_ref.shape[2]
        plgpu.copy_gmem_to_smem(q_ref.at[row, kv_head], local.q.at[pl.ds(0, group)], local.q_ready)
        plgpu.barrier_wait(local.q_ready)
        attend_blocks(local, work, walk, stages, lambda token: work.length - 1 - token)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(local.out.at[pl.ds(0, group)], out_ref.at[row, split, kv_head])
        plgpu.copy_smem_to_gmem(local.log_total.at[pl.ds(0, group)], log_total_ref.at[row, split, kv_head])
        plgpu.wait_smem_to_gmem(0)


def fetch_blocks(
    layer: Array, table: Any, kv_head: Array, k_ref: Any, v_ref: Any, local: Scratch, work: Work, walk: Walk,
    stages: int,
) -> None:  # fmt: skip
    """Fills the ring of stages with the pages of one program; `table` gives the page of a column."""
    head_dim = local.k.shape[-1]
    columns = pl.ds(pl.multiple_of(kv_head * head_dim, head_dim), head_dim)

    def wait_until_free(i: Array) -> None:
        stage = lax.rem(i, jnp.int32(stages))
        plgpu.barrier_wait(local.k_free.at[stage])
        plgpu.barrier_wait(local.v_free.at[stage])

    @pl.loop(0, work.num_blocks)
    def _block(i: Array) -> None:
        stage = lax.rem(i, jnp.int32(stages))
        pl.when(i >= stages)(lambda: wait_until_free(i))
        for j in range(walk.pieces_per_block):
            source = pl.ds(walk.first_row_of_piece(layer, table, work, i, j), walk.piece), columns
            target = stage, pl.ds(j * walk.piece, walk.piece)
            plgpu.copy_gmem_to_smem(k_ref.at[source], local.k.at[target], local.k_ready.at[stage])
            plgpu.copy_gmem_to_smem(v_ref.at[source], local.v.at[target], local.v_ready.at[stage])

    # The last arrivals too are waited for: no program ends with a barrier half used.
    pl.loop(jnp.maximum(work.num_blocks - stages, 0), work.num_blocks)(wait_until_free)


def attend_blocks(local: Scratch, work: Work, walk: Walk, stages: int, distance_of: Callable[[Array], Array]) -> None:
    """Leaves the normalised output of QUERY_ROWS rows, and their log totals, in shared memory.

    `distance_of` gives, for a matrix of key positions, each row's query position minus them.
    """
    layout = plgpu.Layout.WGMMA
    head_dim = local.q.shape[1]
    zeros = jnp.zeros((QUERY_ROWS, head_dim), jnp.float32)
    start = (
        plgpu.layout_cast(jnp.full((QUERY_ROWS,), MASKED, jnp.float32), layout.reduce(1)),
        plgpu.layout_cast(jnp.zeros((QUERY_ROWS,), jnp.float32), layout.reduce(1)),
        plgpu.layout_cast(zeros, layout),
    )

    def body(i: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        peak, total, out = state
        stage = lax.rem(i, jnp.int32(stages))
        plgpu.barrier_wait(local.k_ready.at[stage])
        product = _product((QUERY_ROWS, walk.block), local.q, local.k.at[stage].transpose((1, 0)))
        plgpu.barrier_arrive(local.k_free.at[stage])
        token = work.first_token(walk, i) + plgpu.broadcasted_iota(jnp.int32, product.shape, 1, layout=layout)
        distance = distance_of(token)
        visible = work.visible(token) & walk.rule.visible(distance)
        score = jnp.where(visible, walk.rule.score(product, distance, None), MASKED)
        new_peak = jnp.maximum(peak, score.max(axis=1))
        decay = jnp.exp(peak - new_peak)
        # Selected once more: a row that has seen no key yet has MASKED - MASKED = 0 here.
        weight = jnp.where(visible, jnp.exp(score - _over_columns(new_peak, score)), 0.0)
        local.weight[...] = weight.astype(local.weight.dtype)
        plgpu.barrier_wait(local.v_ready.at[stage])
        _zero_invisible_values(local.v.at[stage], work, walk, i)
        plgpu.commit_smem()
        added = _product((QUERY_ROWS, head_dim), local.weight, local.v.at[stage])
        plgpu.barrier_arrive(local.v_free.at[stage])
        return new_peak, total * decay + weight.sum(axis=1), out * _over_columns(decay, out) + added

    peak, total, out = lax.fori_loop(0, work.num_blocks, body, start)
    divisor = jnp.where(total > 0, total, 1.0)
    local.out[...] = out / _over_columns(divisor, out)
    local.log_total[...] = jnp.where(total > 0, peak + jnp.log(divisor), MASKED)


def _product(shape: tuple[int, int], a: Any, b: Any) -> Array:
    def multiply(accumulator: Any) -> Array:
        plgpu.wgmma(accumulator, a, b)
        return accumulator[...]

    return pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef(shape, jnp.float32))


def _over_columns(rows: Array, like: Array) -> Array:
    return lax.broadcast_in_dim(rows, like.shape, [0])


def _zero_invisible_values(values_ref: Any, work: Work, walk: Walk, i: Array) -> None:
    # Zeroed, not weighted by 0: an unfilled slot may hold NaN or infinity. Only a row's outermost blocks have such.
    @pl.when(work.has_invisible(walk, i))
    def _zero() -> None:
        layout = plgpu.Layout.WGMMA
        values = plgpu.load(values_ref, layout=layout, optimized=False)
        token = work.first_token(walk, i) + plgpu.broadcasted_iota(jnp.int32, values.shape, 0, layout=layout)
        values_ref[...] = jnp.where(work.visible(token), values, jnp.zeros_like(values))
