"""Slot writes as one scatter for each array of the pool.

The path for the CPU, correct on every platform. In place under donation, also inside a loop over layers that carries
the pool.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from pallas_kernels.kv_pages import KVPages, first_token_of_layer
from pallas_kernels.support import Support

SUPPORT = Support(hardware="any", proof="tested")


def write_kv(kv: KVPages, tokens: KVPages, slots: Int[Array, " T"], layer: ArrayLike) -> KVPages:
    """The pool with the new tokens, `[T, K, H]` and `[T, K]` in the pool's dtypes, in their slots."""
    inside = (slots >= 0) & (slots < kv.num_slots)
    # Dropped before the layer's offset is added: slot P * S of one layer is slot 0 of the next.
    indices = jnp.where(inside, slots + first_token_of_layer(kv, layer), kv.num_layers * kv.num_slots)

    def written(held: Array, update: Array) -> Array:
        # Whole tokens: a scatter of flat rows is the one that stays in place at every pool size.
        return held.at[indices].set(update.reshape(indices.shape[0], -1), mode="drop")

    return jax.tree.map(written, kv.as_bytes().by_token(), tokens.as_bytes()).shaped_like(kv)
