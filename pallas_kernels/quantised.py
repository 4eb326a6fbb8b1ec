"""Keys and values of one byte per element.

There is one float32 scale per token and kv head, so that no page is ever written a second time to change its scale.
"""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

LARGEST = {
    jnp.dtype(jnp.int8): 127.0,
    jnp.dtype(jnp.float8_e4m3fn): 448.0,
    jnp.dtype(jnp.float8_e5m2): 57344.0,
}
"""What the largest element of a token's head becomes; -128 is not used, so that a head and its negative round alike."""

SCALE_BYTES = 4
_SMALLEST_SCALE = float(jnp.finfo(jnp.float32).tiny)


def is_quantised(dtype: DTypeLike) -> bool:
    """Whether a pool of `dtype` has scales."""
    return jnp.dtype(dtype) in LARGEST


def quantise(heads: Float[Array, "T K H"], dtype: DTypeLike) -> tuple[Shaped[Array, "T K H"], Float[Array, "T K"]]:
    """Each head as elements of `dtype` and one float32 scale: element times scale is the value again.

    The scale is the head's largest magnitude over LARGEST, elements round to nearest, ties to even. With s the scale,
    a value x comes back within s / 2 from int8, within max(|x| / 16, s / 1024) from float8_e4m3fn and within
    max(|x| / 8, s / 2**17) from float8_e5m2. A head of zeros, or one whose scale no normal float32 can say, has scale
    0 and comes back as zeros. A head with a NaN or an infinity has scale NaN and comes back as NaN: loud, and seen by
    those alone who may see that token.
    """
    largest = LARGEST[jnp.dtype(dtype)]
    values = heads.astype(jnp.float32)
    # Reciprocals, as XLA would make of divisions by a constant and by a broadcast, so that every program agrees.
    scale = jnp.abs(values).max(axis=-1) * jnp.float32(1 / largest)
    finite = jnp.isfinite(scale)
    usable = finite & (scale >= _SMALLEST_SCALE)
    # Selected before and after: no reciprocal of 0, and no NaN is ever cast to an integer.
    ratio = values * (1.0 / jnp.where(usable, scale, 1.0))[..., None]
    ratio = jnp.clip(jnp.where(usable[..., None], ratio, 0.0), -largest, largest)
    if jnp.issubdtype(dtype, jnp.integer):
        ratio = jnp.round(ratio)
    return ratio.astype(dtype), jnp.where(usable, scale, jnp.where(finite, 0.0, jnp.nan))
