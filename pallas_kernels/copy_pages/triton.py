"""Page copies for NVIDIA GPUs: every layer, keys and values in one launch, through Pallas' Triton backend.

Lives here: the kernel, one program a pair, layer and piece of a page.
Promises: the pool is written in place. Pairs run in parallel: no target may be another pair's source.
Must not know: why a page is copied.
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

PIECE_ELEMENTS = 2048


def copy_pages(kv: KVPages, src: Int[Array, " R"], dst: Int[Array, " R"], *, interpret: bool = False) -> KVPages:
    """The pool with each source page copied over its target."""
    k_rows, v_rows = kv.page_rows()
    elements = k_rows.shape[-1]
    piece = min(PIECE_ELEMENTS, triton_call.power_of_two(elements))
    k_rows, v_rows = triton_call.call(
        partial(_copy_piece, elements=elements, piece=piece),
        name="copy_pages",
        grid=(src.shape[0], kv.num_layers, pl.cdiv(elements, piece)),
        out_shape=[jax.ShapeDtypeStruct(rows.shape, rows.dtype) for rows in (k_rows, v_rows)],
        num_warps=4,
        num_stages=1,
        interpret=interpret,
        aliases={2: 0, 3: 1},
    )(src, dst, k_rows, v_rows)
    return kv.replace_rows(k_rows, v_rows)


def _copy_piece(
    src_ref: Any,
    dst_ref: Any,
    _k_pool_ref: Any,
    _v_pool_ref: Any,
    k_ref: Any,
    v_ref: Any,
    *,
    elements: int,
    piece: int,
) -> None:
    pair, layer = pl.program_id(0), pl.program_id(1)
    source, target = plgpu.load(src_ref.at[pair]), plgpu.load(dst_ref.at[pair])
    element = pl.program_id(2) * piece + jnp.arange(piece)
    mask = (element < elements) & (source != target)
    for pool in (k_ref, v_ref):
        values = plgpu.load(pool.at[layer, source, element], mask=mask, other=0.0)
        plgpu.store(pool.at[layer, target, element], values, mask=mask)
