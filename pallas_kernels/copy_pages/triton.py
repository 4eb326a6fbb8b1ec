"""Page copies for NVIDIA GPUs: every layer, keys, values and scales in one launch, through Pallas' Triton backend.

One program per pair, layer and piece of a page. Pairs run in parallel: no target may be another pair's source. The pool
is written in place.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Int

from pallas_kernels import triton_call
from pallas_kernels.kv_pages import KVPages

SUPPORT = triton_call.MOVES_PAGES

PIECE_ELEMENTS = 2048


def copy_pages(kv: KVPages, src: Int[Array, " R"], dst: Int[Array, " R"], *, interpret: bool = False) -> KVPages:
    """The pool with each source page copied over its target."""
    triton_call.check_offsets(kv)
    pool = kv.by_page()
    elements = pool.k.shape[-1]
    piece = min(PIECE_ELEMENTS, triton_call.power_of_two(elements))
    (copied,) = triton_call.call(
        partial(_copy_piece, piece=piece),
        name="copy_pages",
        grid=(src.shape[0], kv.num_layers, pl.cdiv(elements, piece)),
        out_shape=[jax.tree.map(lambda pages: jax.ShapeDtypeStruct(pages.shape, pages.dtype), pool)],
        num_warps=4,
        num_stages=1,
        interpret=interpret,
        aliases={2 + i: i for i in range(len(jax.tree.leaves(pool)))},
    )(src, dst, pool)
    return copied.shaped_like(kv)


def _copy_piece(
    src_ref: Any,
    dst_ref: Any,
    _pool_ref: Any,
    copied_ref: Any,
    *,
    piece: int,
) -> None:
    pair, layer = pl.program_id(0), pl.program_id(1)
    source, target = plgpu.load(src_ref.at[pair]), plgpu.load(dst_ref.at[pair])
    element = pl.program_id(2) * piece + jnp.arange(piece)
    for pages in jax.tree.leaves(copied_ref):
        # Scales are fewer than elements: all of a page's are in its first pieces.
        mask = (element < pages.shape[-1]) & (source != target)
        values = plgpu.load(pages.at[layer, source, element], mask=mask)
        plgpu.store(pages.at[layer, target, element], values, mask=mask)
