"""Attention cases whose pool is quantised, and how far quantisation may move an output.

Lives here: quantised and error_bound.
Promises: what no row owns holds garbage, in scales too; keys and values of a case are what its pool gives back.
Must not know: any implementation of an operation.
"""

from dataclasses import replace

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from attention_cases import LAYER, Case

from pallas_kernels import KVPages
from pallas_kernels.quantised import quantise

DTYPES = [jnp.int8, jnp.float8_e4m3fn, jnp.float8_e5m2]
# The largest element, half a step relative to a value, half the smallest step relative to the scale.
FORMATS = {"int8": (127, 0.0, 2**-1), "float8_e4m3fn": (448, 2**-4, 2**-10), "float8_e5m2": (57344, 2**-3, 2**-17)}
_NUMPY = {"int8": np.int8, "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


def quantised(case: Case, dtype, garbage=(np.nan, np.inf, -np.inf), seed: int = 1) -> Case:
    """The case with its tokens in a pool of `dtype`; `garbage` fills the scales of slots that no row owns."""
    rng = np.random.default_rng(seed)
    shape = case.kv.k.shape
    numpy_dtype = _NUMPY[jnp.dtype(dtype).name]
    # Any byte at all: NaN and infinity among those of the 8-bit floats.
    pools = [rng.integers(0, 256, shape, np.uint8).view(numpy_dtype) for _ in range(2)]
    scales = [rng.choice(np.asarray(garbage, np.float32), shape[:-1]) for _ in range(2)]
    tables = np.asarray(case.block_tables)
    dense = [[], []]
    for row, tokens in enumerate(zip(case.keys, case.values, strict=True)):
        position = np.arange(len(tokens[0]))
        page_size = case.kv.page_size
        place = (LAYER, tables[row, position // page_size], position % page_size)
        for which, values in enumerate(tokens):
            elements, scale = quantise(jnp.asarray(values, jnp.float32), dtype)
            pools[which][place], scales[which][place] = np.asarray(elements), np.asarray(scale)
            dense[which].append(dequantised(elements, scale))
    kv = KVPages(*(jnp.asarray(array) for array in (*pools, *scales)))
    return replace(case, kv=kv, keys=dense[0], values=dense[1])


def dequantised(elements, scale) -> np.ndarray:
    """Elements times scale in float64."""
    return np.asarray(elements).astype(np.float64) * np.asarray(scale, np.float64)[..., None]


def rounding_bound(values: np.ndarray, dtype) -> np.ndarray:
    """How far each value may come back from its quantised head, from the head's scale and the format alone."""
    largest, relative, absolute = FORMATS[jnp.dtype(dtype).name]
    scale = np.abs(values).max(axis=-1, keepdims=True) / largest
    # Half a step; the scale and the ratio are rounded to float32 on the way.
    return np.maximum(np.abs(values) * relative, scale * absolute) + np.abs(values) * 2**-21


def error_bound(case: Case, dtype) -> np.ndarray:
    """How far quantising the keys and values of a float `case` may move each head of each output, `[T, N]`.

    Scores move by at most d = scale * max over keys of sum |q| * bound(k), hence each softmax weight by a factor in
    exp(-2d) .. exp(2d), hence the output by (exp(2d) - 1) * max |v| + max bound(v).
    """
    q = np.abs(np.asarray(case.q, np.float64))
    starts, group = np.asarray(case.query_starts), q.shape[1] // case.kv.num_kv_heads
    bound = np.zeros(q.shape[:2])
    for row, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        for token in range(starts[row], starts[row + 1]):
            for head in range(q.shape[1]):
                own = head // group
                k_bound, v_bound = (rounding_bound(x[:, own], dtype) for x in (keys, values))
                moved = (k_bound @ q[token, head]).max() * q.shape[2] ** -0.5
                bound[token, head] = np.expm1(2 * moved) * np.abs(values[:, own]).max() + v_bound.max()
    return bound
