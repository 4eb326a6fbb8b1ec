"""Slot writes, written to be read.

This defines what every other implementation must return: exactly the named slots of one layer change. It slices a layer
out and puts it back, which copies it.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from pallas_kernels.kv_pages import KVPages
from pallas_kernels.support import Support

SUPPORT = Support(hardware="any", proof="tested")


def write_kv(kv: KVPages, tokens: KVPages, slots: Int[Array, " T"], layer: ArrayLike) -> KVPages:
    """The pool with the new tokens, `[T, K, H]` and `[T, K]` in the pool's dtypes, in their slots."""
    # A negative index counts from the end; send it past the end, where it is dropped.
    targets = jnp.where(slots < 0, kv.num_slots, slots)

    def written(pages: Array, update: Array) -> Array:
        held = pages[layer].reshape(kv.num_slots, *update.shape[1:])
        held = held.at[targets].set(update, mode="drop")
        return pages.at[layer].set(held.reshape(pages.shape[1:]))

    return jax.tree.map(written, kv.with_layers(), tokens).shaped_like(kv)
