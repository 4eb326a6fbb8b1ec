"""Attention cases with garbage wherever a kernel must not look, and what is right in float64.

Lives here: build_case and expected.
Promises: every axis has another size, tables are permuted, whatever no row owns is NaN or infinite; keys, values
and queries of a seed do not depend on the page size.
Must not know: any implementation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import KVPages

LAYER = 1


@dataclass(frozen=True)
class Case:
    """One call's arrays, and the dense float64 keys and values of each row behind them."""

    q: jax.Array
    kv: KVPages
    block_tables: jax.Array
    context_lens: jax.Array
    query_starts: jax.Array
    keys: list[np.ndarray]
    values: list[np.ndarray]

    @property
    def ragged(self) -> tuple[jax.Array, KVPages, jax.Array, jax.Array, jax.Array]:
        """The arguments of ragged_paged_attention."""
        return self.q, self.kv, self.block_tables, self.context_lens, self.query_starts

    @property
    def decode(self) -> tuple[jax.Array, KVPages, jax.Array, jax.Array]:
        """The arguments of paged_attention; for cases with one query a row."""
        assert self.q.shape[0] == len(self.keys)
        return self.q, self.kv, self.block_tables, self.context_lens


def build_case(
    lengths: Sequence[int],
    num_queries: Sequence[int] | None = None,
    *,
    page_size: int = 3,
    num_kv_heads: int = 5,
    group: int = 3,
    head_dim: int = 8,
    num_layers: int = 4,
    dtype: jnp.dtype = jnp.float32,
    query_dtype: jnp.dtype | None = None,
    padding_queries: int = 0,
    spare_columns: int = 1,
    garbage: Sequence[float] = (np.nan, np.inf, -np.inf),
    seed: int = 0,
) -> Case:
    """Rows of the given context lengths, whose newest `num_queries` tokens (default: one) are queries."""
    rng = np.random.default_rng(seed)
    counts = [1] * len(lengths) if num_queries is None else list(num_queries)
    total = sum(counts) + padding_queries
    token_shape = (num_kv_heads, head_dim)
    keys = [_rounded(rng.standard_normal((n, *token_shape)), dtype) for n in lengths]
    values = [_rounded(rng.standard_normal((n, *token_shape)), dtype) for n in lengths]
    q = jnp.asarray(rng.standard_normal((total, num_kv_heads * group, head_dim)), query_dtype or dtype)
    pages_of = [-(-n // page_size) for n in lengths]
    num_pages = 1 + sum(pages_of) + 7
    order = iter(1 + rng.permutation(num_pages - 1))
    tables = rng.choice([0, num_pages - 1, num_pages + 5, 10**6], (len(lengths), max(pages_of) + spare_columns))
    shape = (num_layers, num_pages, page_size, *token_shape)
    pools = [rng.choice(garbage, shape), rng.choice(garbage, shape)]
    for row, (length, used) in enumerate(zip(lengths, pages_of, strict=True)):
        tables[row, :used] = [next(order) for _ in range(used)]
        position = np.arange(length)
        place = (LAYER, tables[row, position // page_size], position % page_size)
        pools[0][place] = keys[row]
        pools[1][place] = values[row]
    return Case(
        q=q,
        kv=KVPages(jnp.asarray(pools[0], dtype), jnp.asarray(pools[1], dtype)),
        block_tables=jnp.asarray(tables, jnp.int32),
        context_lens=jnp.asarray(lengths, jnp.int32),
        query_starts=jnp.asarray(np.cumsum([0, *counts]), jnp.int32),
        keys=keys,
        values=values,
    )


def expected(
    case: Case,
    *,
    scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: np.ndarray | None = None,
) -> np.ndarray:
    """What is right, `[T, N, H]` float64, one query at a time."""
    q = np.asarray(case.q.astype(jnp.float32), np.float64)
    out = np.zeros(q.shape)
    starts = np.asarray(case.query_starts)
    group = q.shape[1] // case.kv.num_kv_heads
    for row, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        for token in range(starts[row], starts[row + 1]):
            position = len(keys) - starts[row + 1] + token
            if position < 0:
                continue
            seen = np.arange(0 if window is None else max(0, position - window + 1), position + 1)
            for head in range(q.shape[1]):
                score = keys[seen, head // group] @ q[token, head] * (scale or q.shape[2] ** -0.5)
                if soft_cap is not None:
                    score = soft_cap * np.tanh(score / soft_cap)
                if alibi_slopes is not None:
                    score = score + alibi_slopes[head] * (seen - position)
                weight = np.exp(score - score.max())
                out[token, head] = weight / weight.sum() @ values[seen, head // group]
    return out


def _rounded(array: np.ndarray, dtype: jnp.dtype) -> np.ndarray:
    return array.astype(jnp.dtype(dtype)).astype(np.float64)


TOLERANCE = {jnp.dtype(jnp.float32): 3e-6, jnp.dtype(jnp.float16): 4e-3, jnp.dtype(jnp.bfloat16): 3e-2}


def assert_right(out: jax.Array, right: np.ndarray, dtype: jnp.dtype = jnp.float32) -> None:
    """Fails unless `out` is finite and as close to `right` as sums over values of `dtype` come."""
    got = np.asarray(out.astype(jnp.float32), np.float64)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, right, rtol=0, atol=TOLERANCE[jnp.dtype(dtype)])
