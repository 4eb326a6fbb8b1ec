"""Slot writes as one scatter for the keys and one for the values.

Lives here: the path for the CPU, correct on every platform.
Promises: in place under donation, also inside a loop over layers that carries the pool.
Must not know: anything about the tokens written.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels.kv_pages import KVPages, first_row_of_layer


def write_kv(
    kv: KVPages, k: Float[Array, "T K H"], v: Float[Array, "T K H"], slots: Int[Array, " T"], layer: ArrayLike
) -> KVPages:
    """The pool with the new keys and values in their slots."""
    k_rows, v_rows = kv.token_rows()
    inside = (slots >= 0) & (slots < kv.num_slots)
    # Dropped before the layer's offset is added: slot P * S of one layer is slot 0 of the next.
    rows = jnp.where(inside, slots + first_row_of_layer(kv, layer), k_rows.shape[0])
    count = slots.shape[0]
    return kv.replace_rows(
        k_rows.at[rows].set(k.reshape(count, -1), mode="drop"),
        v_rows.at[rows].set(v.reshape(count, -1), mode="drop"),
    )
