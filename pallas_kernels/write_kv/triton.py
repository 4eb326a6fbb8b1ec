"""Slot writes for NVIDIA GPUs: keys, values and scales in one launch, through Pallas' Triton backend.

One program per token. The pool is written in place; a slot outside the layer is masked before it is an address.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from pallas_kernels import triton_call
from pallas_kernels.kv_pages import KVPages

SUPPORT = triton_call.MOVES_PAGES


def write_kv(
    kv: KVPages, tokens: KVPages, slots: Int[Array, " T"], layer: ArrayLike, *, interpret: bool = False
) -> KVPages:
    """The pool with the new tokens, `[T, K, H]` and `[T, K]` in the pool's dtypes, in their slots."""
    triton_call.check_offsets(kv)
    count = slots.shape[0]
    pool, rows = kv.by_slot(), jax.tree.map(lambda update: update.reshape(count, -1), tokens)
    num_arrays = len(jax.tree.leaves(pool))
    (written,) = triton_call.call(
        partial(_write_token, num_slots=kv.num_slots),
        name="write_kv",
        grid=(count,),
        out_shape=[jax.tree.map(lambda held: jax.ShapeDtypeStruct(held.shape, held.dtype), pool)],
        num_warps=4,
        num_stages=1,
        interpret=interpret,
        aliases={2 + num_arrays + i: i for i in range(num_arrays)},
    )(triton_call.layer_operand(layer), slots, rows, pool)
    return written.shaped_like(kv)


def _write_token(
    layer_ref: Any, slot_ref: Any, rows_ref: Any, _pool_ref: Any, written_ref: Any, *, num_slots: int
) -> None:
    token = pl.program_id(0)
    layer = layer_ref[0]
    slot = plgpu.load(slot_ref.at[token])
    inside = (slot >= 0) & (slot < num_slots)
    for source, target in zip(jax.tree.leaves(rows_ref), jax.tree.leaves(written_ref), strict=True):
        width = source.shape[-1]
        element = jnp.arange(triton_call.power_of_two(width))
        mask = (element < width) & inside
        row = plgpu.load(source.at[token, element], mask=mask)
        plgpu.store(target.at[layer, slot, element], row, mask=mask)
