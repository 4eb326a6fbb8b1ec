"""The keys and values of every layer, in pages.

Lives here: KVPages and the page layout: `[L, P, S, K, H]`, a token's heads contiguous, a page one block.
Promises: nobody else reshapes a pool; every view below is a bitcast, never a copy.
Must not know: which request owns a page, what a block table means, which kernel reads the pool.
"""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Int


class KVPages(NamedTuple):
    """The pool: keys and values `[L, P, S, K, H]`, or `[P, S, K, H]` for a single layer.

    `k_scale` and `v_scale`, `[L, P, S, K]` float32, belong to int8 and fp8 pools (one scale a token and head) and
    are None otherwise. Page 0 is the null page: nobody owns it and its contents are never read into a result.
    """

    k: Array
    v: Array
    k_scale: Array | None = None
    v_scale: Array | None = None

    @property
    def num_layers(self) -> int:
        """Layers in the pool, 1 for a 4-D pool."""
        return self.k.shape[0] if self.k.ndim == 5 else 1

    @property
    def num_pages(self) -> int:
        """Pages in every layer, the null page included."""
        return self.k.shape[-4]

    @property
    def page_size(self) -> int:
        """Token slots in a page."""
        return self.k.shape[-3]

    @property
    def num_kv_heads(self) -> int:
        """Key-value heads of a token."""
        return self.k.shape[-2]

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return self.k.shape[-1]

    @property
    def num_slots(self) -> int:
        """Token slots in one layer, P * S."""
        return self.num_pages * self.page_size

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of the pool."""
        return sum(array.nbytes for array in self if array is not None)

    def with_layers(self) -> Self:
        """The same pool as 5-D arrays."""
        if self.k.ndim == 5:
            return self
        return self._replace(k=self.k[None], v=self.v[None])

    def token_rows(self) -> tuple[Float[Array, "R W"], Float[Array, "R W"]]:
        """Keys and values as one row a token slot: R = L * P * S rows of W = K * H elements."""
        width = self.num_kv_heads * self.head_dim
        return self.k.reshape(-1, width), self.v.reshape(-1, width)

    def page_rows(self) -> tuple[Float[Array, "L P E"], Float[Array, "L P E"]]:
        """Keys and values as one row a page: E = S * K * H elements."""
        shape = (self.num_layers, self.num_pages, -1)
        return self.k.reshape(shape), self.v.reshape(shape)

    def replace_rows(self, k: Array, v: Array) -> Self:
        """A pool of this pool's shape holding `k` and `v`, given in any of the views above."""
        return self._replace(k=k.reshape(self.k.shape), v=v.reshape(self.v.shape))


def allocate(
    num_layers: int,
    num_pages_total: int,
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: DTypeLike = jnp.float32,
    *,
    sharding: jax.sharding.Sharding | None = None,
) -> KVPages:
    """A pool of zeros; `num_pages_total` counts the null page."""
    shape = (num_layers, num_pages_total, page_size, num_kv_heads, head_dim)
    if min(shape) < 1:
        raise ValueError(f"every axis of a pool must be at least 1, got [L, P, S, K, H] = {shape}")
    return KVPages(
        k=jnp.zeros(shape, dtype, device=sharding),
        v=jnp.zeros(shape, dtype, device=sharding),
    )


def first_row_of_layer(kv: KVPages, layer: ArrayLike) -> Int[Array, ""]:
    """The row of `token_rows` that holds slot 0 of `layer`."""
    return jnp.asarray(layer, jnp.int32) * kv.num_slots


def rows_of_positions(
    kv: KVPages, block_tables: Int[Array, "*rows M"], positions: Int[Array, " C"], layer: ArrayLike
) -> Int[Array, "*rows C"]:
    """The rows of `token_rows` that hold the given positions of each table's sequence.

    A position past the table's end and an entry that is no page give some row of the pool: mask what is read there.
    """
    column = jnp.minimum(positions // kv.page_size, block_tables.shape[-1] - 1)
    page = jnp.take(block_tables, column, axis=-1, mode="clip")
    return first_row_of_layer(kv, layer) + page * kv.page_size + positions % kv.page_size


def check_pool(kv: KVPages, layer: ArrayLike = 0) -> None:
    """Nothing, or ValueError when the pool's arrays or a static `layer` do not fit together.

    Raises NotImplementedError for a pool with scales: no kernel reads quantised pages yet.
    """
    if kv.k.ndim not in (4, 5) or kv.k.shape != kv.v.shape or kv.k.dtype != kv.v.dtype:
        raise ValueError(
            "a pool needs k and v of one shape, [L, P, S, K, H] or [P, S, K, H], and of one dtype; "
            f"got k {kv.k.dtype}{list(kv.k.shape)} and v {kv.v.dtype}{list(kv.v.shape)}"
        )
    if kv.k_scale is not None or kv.v_scale is not None:
        raise NotImplementedError("k_scale and v_scale (int8 or fp8 pages) are not implemented; use a float pool")
    if kv.k.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        raise NotImplementedError(f"a pool of {kv.k.dtype} is not implemented; use float32, bfloat16 or float16")
    if isinstance(layer, int) and not 0 <= layer < kv.num_layers:
        raise ValueError(f"layer={layer} is outside the pool, which has {kv.num_layers} layers")
