"""The core of attention on Hopper GPUs, through Pallas' Mosaic GPU backend: for decode and for ragged attention.

One warpgroup fetches pages by TMA, one multiplies them by wgmma. Table entries outside a row's visible pages are never
read, nor is anything invisible used, though whole pieces of pages are fetched. What is interpreted is what is compiled;
the interpreter also looks for data races and starts from shared memory full of NaN.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from pallas_kernels.dispatch import target_device
from pallas_kernels.mosaic_walk import Walk, Work
from pallas_kernels.scores import MASKED
from pallas_kernels.support import Support

QUERY_ROWS = 64
"""Rows of a wgmma: a group's query heads, or queries times these; the rest is never stored."""

SMEM_BYTES = 227 * 1024
"""Shared memory that one program may have."""

BLOCK_TOKENS = 64


def supported(*tuning: str) -> Support:
    """The record of an operation whose kernel has these sizes to tune."""
    return Support(
        hardware="compute capability 9.0",
        proof="interpreted with race detection; compiled",
        pool_dtypes=("bfloat16", "float16"),
        page_size_multiple=8,
        head_dims=(64, 128),
        max_group=QUERY_ROWS,
        score_options=("window", "soft_cap"),
        tuning=tuning,
        query_dtype_is_pool_dtype=True,
    )


def check_device(interpret: bool) -> None:
    """Nothing, or NotImplementedError where a kernel is compiled for a device that is no Hopper GPU."""
    device = target_device()
    # An abstract device has a name and no compute capability.
    named = any(name in device.device_kind for name in ("H100", "H200"))
    if not interpret and getattr(device, "compute_capability", "9.0" if named else None) != "9.0":
        raise NotImplementedError(
            f"implementation='mosaic_gpu' has kernels for Hopper only and {device.device_kind!r} is none; use 'triton' "
            "on other NVIDIA GPUs, or interpret=True to run it on the CPU"
        )


def checked_sizes(block_tokens: int | None, num_stages: int | None, head_dim: int) -> tuple[int, int]:
    """Tokens per block and stages of the ring, or ValueError when they do not fit into shared memory."""
    block = block_tokens or BLOCK_TOKENS
    stages = num_stages or (4 if head_dim <= 64 else 2)
    if block % 64 or stages < 2:
        raise ValueError(f"block_tokens={block} must be a multiple of 64 and num_stages={stages} at least 2")
    # Queries, keys and values of every stage, weights; output and log totals.
    needed = 2 * (QUERY_ROWS * head_dim + 2 * stages * block * head_dim + QUERY_ROWS * block)
    needed += 4 * QUERY_ROWS * (head_dim + 1)
    if needed > SMEM_BYTES:
        raise ValueError(
            f"block_tokens={block} and num_stages={stages} need {needed} bytes of shared memory per program; "
            f"there are {SMEM_BYTES}"
        )
    return block, stages


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


def kernel(
    program: Callable[..., None], q: Array, walk: Walk, stages: int, *, out_type: Any, grid: dict[str, int],
    interpret: bool,
) -> Callable[..., Any]:  # fmt: skip
    """`program` as a function of arrays. It gets references to them, to its outputs and to the fields of Scratch."""
    head_dim, pieces = q.shape[-1], walk.pieces_per_block
    # Matrices of 16 bits that tensor cores read: tiles of 8 rows, each row one swizzle.
    tiles = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)  # pyright: ignore[reportAbstractUsage]
    tiled = partial(plgpu.SMEM, dtype=q.dtype, transforms=tiles)
    return plgpu.kernel(
        program,
        out_type=out_type,
        scratch_types=Scratch(
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
        ),
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        num_threads=2,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=walk.rule.soft_cap is None),
        interpret=plgpu.InterpretGPUParams(detect_races=True) if interpret else False,
    )


def run_warpgroups(
    local: Scratch, work: Work, walk: Walk, *, fetch: Callable[[], None], distance_of: Callable[[Array], Array],
    q_ref: Any, outputs: list[tuple[Any, Any]],
) -> None:  # fmt: skip
    """One program: its second warpgroup runs `fetch`, its first one attends.

    `distance_of` gives, for a matrix of key positions, each row's query position minus them. The first rows of
    `outputs`, pairs of shared and global memory, are stored; as many as `q_ref` has.
    """
    pl.when(lax.axis_index("warpgroup") == 1)(fetch)

    @pl.when(lax.axis_index("warpgroup") == 0)
    def _compute() -> None:
        rows = pl.ds(0, q_ref.shape[0])
        plgpu.copy_gmem_to_smem(q_ref, local.q.at[rows], local.q_ready)
        plgpu.barrier_wait(local.q_ready)
        _attend_blocks(local, work, walk, distance_of)
        plgpu.commit_smem()
        for source, target in outputs:
            plgpu.copy_smem_to_gmem(source.at[rows], target)
        plgpu.wait_smem_to_gmem(0)


def fetch_blocks(
    layer: Array, table: Callable[[Array], Array], kv_head: Array, k_ref: Any, v_ref: Any, local: Scratch, work: Work,
    walk: Walk,
) -> None:  # fmt: skip
    """Fills the ring of stages with the pages of one program; `table` gives the page of a column."""
    stages, _, head_dim = local.k.shape
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
            source = pl.ds(walk.first_token_of_piece(layer, table, work, i, j), walk.piece), columns
            target = stage, pl.ds(j * walk.piece, walk.piece)
            plgpu.copy_gmem_to_smem(k_ref.at[source], local.k.at[target], local.k_ready.at[stage])
            plgpu.copy_gmem_to_smem(v_ref.at[source], local.v.at[target], local.v_ready.at[stage])

    # The last arrivals too are waited for: no program ends with a barrier half used.
    pl.loop(jnp.maximum(work.num_blocks - stages, 0), work.num_blocks)(wait_until_free)


def _attend_blocks(local: Scratch, work: Work, walk: Walk, distance_of: Callable[[Array], Array]) -> None:
    """Leaves the normalised output of QUERY_ROWS rows, and their log totals, in shared memory."""
    layout = plgpu.Layout.WGMMA
    stages, head_dim = local.k.shape[0], local.q.shape[1]
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
