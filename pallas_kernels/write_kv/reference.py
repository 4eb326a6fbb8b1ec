"""Slot writes, written to be read.

Lives here: the definition of what every other implementation must return.
Promises: exactly the named slots of one layer change.
Must not know: speed. It slices a layer out and puts it back, which copies it.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels.kv_pages import KVPages


def write_kv(
    kv: KVPages, k: Float[Array, "T K H"], v: Float[Array, "T K H"], slots: Int[Array, " T"], layer: ArrayLike
) -> KVPages:
    """The pool with the new keys and values in their slots."""
    pool = kv.with_layers()
    # A negative index counts from the end; send it past the end, where it is dropped.
    targets = jnp.where(slots < 0, kv.num_slots, slots)

    def written(pages: Array, update: Array) -> Array:
        tokens = pages[layer].reshape(kv.num_slots, kv.num_kv_heads, kv.head_dim)
        tokens = tokens.at[targets].set(update, mode="drop")
        return pages.at[layer].set(tokens.reshape(pages.shape[1:]))

    return kv.replace_rows(written(pool.k, k), written(pool.v, v))
