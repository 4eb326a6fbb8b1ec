"""The precision and the order of products and sums.

Products accumulate in float32; float32 operands are multiplied as float32, also where the hardware offers TF32. What is
padded as `least_rows` says has, row by row, the same bits whatever the number of rows.
"""

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array

from pallas_kernels.quantised import is_quantised

LEAST_SUMMED = 4096
"""From this many numbers on, XLA's CPU backend sums the last axis in one order, whatever the number of rows.

Fewer are summed in a loop of XLA's own, more by a library that adds them in another order: a row among few would differ
in its last bits from the same row among many. Found for JAX 0.12 by summing 1 to 129 rows of 64 to 2,048.
"""


LARGEST_DIFFERENCE = {"float32": 2e-5, "bfloat16": 4e-2, "float16": 6e-3}
"""Between two implementations of attention, for values of deviation 1: roundings of the output and of the weights."""


def least_rows(row_size: int) -> int:
    """How many rows of `row_size` numbers must be summed at once, padding included."""
    return -(-LEAST_SUMMED // row_size)


def precision_of(dtype: DTypeLike) -> lax.Precision | None:
    """HIGHEST for float32; None for 16-bit types, whose products are exact in float32 anyway."""
    return lax.Precision.HIGHEST if jnp.dtype(dtype) == jnp.float32 else None


def dot(equation: str, a: Array, b: Array) -> Array:
    """The einsum of `a` and `b` with a float32 result."""
    precision = precision_of(jnp.result_type(a, b))
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32, precision=precision)


def key_dtype(query_dtype: DTypeLike, pool_dtype: DTypeLike) -> jnp.dtype:
    """In what queries and keys are multiplied. Every 1-byte value is exact in each of the three float types."""
    return jnp.dtype(query_dtype if is_quantised(pool_dtype) else jnp.promote_types(query_dtype, pool_dtype))


def value_dtype(query_dtype: DTypeLike, pool_dtype: DTypeLike) -> jnp.dtype:
    """In what weights and values are multiplied.

    A scale is folded into the weights, and a weight times a scale may be below all float16 numbers: 16-bit queries of
    a quantised pool use bfloat16.
    """
    if not is_quantised(pool_dtype):
        return jnp.dtype(jnp.promote_types(query_dtype, pool_dtype))
    return jnp.dtype(jnp.float32 if jnp.dtype(query_dtype) == jnp.float32 else jnp.bfloat16)


def scaled(array: Array, scale: Array | None) -> Array:
    """`array` times `scale`; `array` itself where the pool has no scales."""
    return array if scale is None else array * scale
