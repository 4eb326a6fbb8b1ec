"""Products with float32 results.

Lives here: the precision of every matrix product of these kernels.
Promises: float32 accumulation; float32 operands are multiplied as float32, also where the hardware offers TF32.
Must not know: what is multiplied.
"""

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array


def precision_of(dtype: DTypeLike) -> lax.Precision | None:
    """HIGHEST for float32; None for 16-bit types, whose products are exact in float32 anyway."""
    return lax.Precision.HIGHEST if jnp.dtype(dtype) == jnp.float32 else None


def dot(equation: str, a: Array, b: Array) -> Array:
    """The einsum of `a` and `b` with a float32 result."""
    precision = precision_of(jnp.result_type(a, b))
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32, precision=precision)
