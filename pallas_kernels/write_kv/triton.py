"""Slot writes for NVIDIA GPUs: keys and values in one launch, through Pallas' Triton backend.

Lives here: the kernel, one program a token.
Promises: the pool is written in place; a slot outside the layer is masked before it is an address.
Must not know: anything about the tokens written.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels import triton_call
from pallas_kernels.kv_pages import KVPages


def write_kv(
    kv: KVPages,
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int[Array, " T"],
    layer: ArrayLike,
    *,
    interpret: bool = False,
) -> KVPages:
    """The pool with the new keys and values in their slots."""
    count = slots.shape[0]
    k_rows, v_rows = (rows.reshape(kv.num_layers, kv.num_slots, -1) for rows in kv.token_rows())
    k_rows, v_rows = triton_call.call(
        partial(_write_token, num_slots=kv.num_slots, width=k_rows.shape[-1]),
        name="write_kv",
        grid=(count,),
        out_shape=[jax.ShapeDtypeStruct(rows.shape, rows.dtype) for rows in (k_rows, v_rows)],
        num_warps=4,
        num_stages=1,
        interpret=interpret,
        aliases={4: 0, 5: 1},
    )(triton_call.layer_operand(layer), slots, k.reshape(count, -1), v.reshape(count, -1), k_rows, v_rows)
    return kv.replace_rows(k_rows, v_rows)


def _write_token(
    layer_ref: Any,
    slot_ref: Any,
    k_ref: Any,
    v_ref: Any,
    _k_pool_ref: Any,
    _v_pool_ref: Any,
    k_out_ref: Any,
    v_out_ref: Any,
    *,
    num_slots: int,
    width: int,
) -> None:
    token = pl.program_id(0)
    layer = layer_ref[0]
    slot = plgpu.load(slot_ref.at[token])
    element = jnp.arange(triton_call.power_of_two(width))
    mask = (element < width) & (slot >= 0) & (slot < num_slots)
    for source, target in ((k_ref, k_out_ref), (v_ref, v_out_ref)):
        row = plgpu.load(source.at[token, element], mask=mask, other=0.0)
        plgpu.store(target.at[layer, slot, element], row, mask=mask)
