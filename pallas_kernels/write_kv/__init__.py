"""Writing new keys and values into their slots.

A slot outside the layer is dropped before a layer's offset is added. In place when the pool is donated.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels import dispatch
from pallas_kernels.kv_pages import KVPages, check_pool
from pallas_kernels.quantised import is_quantised, quantise

__all__ = ["write_kv"]


def write_kv(
    kv: KVPages,
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int[Array, " T"],
    *,
    layer: ArrayLike = 0,
    implementation: str | None = None,
    interpret: bool = False,
) -> KVPages:
    """The pool with `k[t]` and `v[t]` in slot `slots[t]` of `layer`; slots outside `[0, P * S)` are dropped.

    A slot is `page * S + offset`. Values are cast to the pool's dtype; for an int8 or fp8 pool they are quantised, one
    scale per token and head (see `quantised.quantise` for errors, zeros and NaN). `layer` may be traced. No slot may
    occur twice among those written. Under donation the pool is updated in place.

    Raises ValueError for shapes that do not fit together.
    """
    check_pool(kv, layer)
    expected = (*slots.shape, kv.num_kv_heads, kv.head_dim)
    if slots.ndim != 1 or k.shape != expected or v.shape != expected:
        raise ValueError(f"k and v must be [T, K, H] = {list(expected)}; got {list(k.shape)} and {list(v.shape)}")
    if not jnp.issubdtype(slots.dtype, jnp.integer):
        raise ValueError(f"slots must be integers; got {slots.dtype}")
    write = dispatch.load("write_kv", implementation, interpret)
    return write(kv, _as_stored(k, v, kv), slots, layer)


def _as_stored(k: Array, v: Array, kv: KVPages) -> KVPages:
    # Quantised here, once for all implementations: the same tokens are the same bytes wherever they are written.
    if not is_quantised(kv.k.dtype):
        return KVPages(k.astype(kv.k.dtype), v.astype(kv.v.dtype))
    (k, k_scale), (v, v_scale) = quantise(k, kv.k.dtype), quantise(v, kv.v.dtype)
    return KVPages(k, v, k_scale, v_scale)
