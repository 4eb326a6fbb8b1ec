"""The keys and values of every layer, in pages.

The layout is `[L, P, S, K, H]`: a token's heads contiguous, a page one block. Nobody else reshapes a pool; every view
below is a bitcast, never a copy.
"""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Int

from pallas_kernels.quantised import is_quantised

FLOAT_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
_FLOAT8 = (jnp.float8_e4m3fn, jnp.float8_e5m2)


class KVPages(NamedTuple):
    """The pool: keys and values `[L, P, S, K, H]`, or `[P, S, K, H]` for a single layer.

    `k_scale` and `v_scale`, `[L, P, S, K]` float32, belong to int8 and fp8 pools (one scale per token and kv head: the
    key is `k * k_scale`) and are None otherwise. Page 0 is the null page: nobody owns it and its contents are never
    read into a result.
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
        """Slots in a page: the tokens that it has room for."""
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
        """Slots in one layer, P * S."""
        return self.num_pages * self.page_size

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of the pool."""
        return sum(array.nbytes for array in self if array is not None)

    def with_layers(self) -> Self:
        """The same pool as 5-D arrays."""
        if self.k.ndim == 5:
            return self
        return jax.tree.map(lambda array: array[None], self)

    def as_bytes(self) -> Self:
        """The same pool with 8-bit floats as the unsigned integers that they are stored as, for moving them.

        XLA's CPU backend updates no array of 8-bit floats: it widens it to 16 bits first. Seen as bytes the array is
        still copied there, once, by the change of type; integers and wider floats are updated in place.
        """
        return jax.tree.map(lambda a: a.view(jnp.uint8) if a.dtype in _FLOAT8 else a, self)

    def by_token(self) -> Self:
        """Every array as `[L * P * S, width of a token]`; what a token's index counts."""
        return jax.tree.map(lambda array: array.reshape(self.num_layers * self.num_slots, -1), self)

    def by_slot(self) -> Self:
        """Every array as `[L, P * S, width of a token]`."""
        return jax.tree.map(lambda array: array.reshape(self.num_layers, self.num_slots, -1), self)

    def by_page(self) -> Self:
        """Every array as `[L, P, width of a page]`."""
        return jax.tree.map(lambda array: array.reshape(self.num_layers, self.num_pages, -1), self)

    def shaped_like(self, pool: Self) -> Self:
        """These arrays, in any of the views above, in the shapes and dtypes of `pool`."""
        return jax.tree.map(lambda array, other: array.reshape(other.shape).view(other.dtype), self, pool)


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
    """A pool of zeros, with scales if `dtype` is int8, float8_e4m3fn or float8_e5m2.

    `num_pages_total` counts the null page. A `sharding` must fit arrays `[L, P, S, K]` too where there are scales.
    """
    shape = (num_layers, num_pages_total, page_size, num_kv_heads, head_dim)
    if min(shape) < 1:
        raise ValueError(f"every axis of a pool must be at least 1, got [L, P, S, K, H] = {shape}")

    def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return jnp.zeros(shape, dtype, device=sharding)

    pool = KVPages(zeros(shape, dtype), zeros(shape, dtype))
    if not is_quantised(dtype):
        return pool
    return pool._replace(k_scale=zeros(shape[:-1], jnp.float32), v_scale=zeros(shape[:-1], jnp.float32))


def first_token_of_layer(kv: KVPages, layer: ArrayLike) -> Int[Array, ""]:
    """The index in `by_token` of slot 0 of `layer`."""
    return jnp.asarray(layer, jnp.int32) * kv.num_slots


def token_indices(
    kv: KVPages, block_tables: Int[Array, "*rows M"], positions: Int[Array, " C"], layer: ArrayLike
) -> Int[Array, "*rows C"]:
    """The indices in `by_token` of the given positions of each table's sequence.

    A position past the table's end and an entry that is no page give some token of the pool: mask what is read there.
    """
    column = jnp.minimum(positions // kv.page_size, block_tables.shape[-1] - 1)
    page = jnp.take(block_tables, column, axis=-1, mode="clip")
    return first_token_of_layer(kv, layer) + page * kv.page_size + positions % kv.page_size


def read_tokens(kv: KVPages, indices: Int[Array, "*rows C"], seen: Bool[Array, "*rows C"]) -> KVPages:
    """Keys and values `[*rows, C, K * H]` of tokens, scales `[*rows, K, C]` or None; values and scales 0 if not `seen`.

    They are selected, not multiplied by 0: an unfilled slot may hold NaN or infinity.
    """
    read = jax.tree.map(lambda array: jnp.take(array, indices, axis=0, mode="clip"), kv.by_token())
    hide = lambda array: jnp.where(seen[..., None], array, 0)  # noqa: E731
    scales = (None if scale is None else hide(scale).swapaxes(-1, -2) for scale in read[2:])
    return KVPages(read.k, hide(read.v), *scales)


def check_pool(kv: KVPages, layer: ArrayLike = 0) -> None:
    """Nothing, or ValueError when the pool's arrays or a static `layer` do not fit together.

    Raises NotImplementedError for a dtype that is not implemented.
    """
    if kv.k.ndim not in (4, 5) or kv.k.shape != kv.v.shape or kv.k.dtype != kv.v.dtype:
        raise ValueError(
            "a pool needs k and v of one shape, [L, P, S, K, H] or [P, S, K, H], and of one dtype; "
            f"got k {kv.k.dtype}{list(kv.k.shape)} and v {kv.v.dtype}{list(kv.v.shape)}"
        )
    if is_quantised(kv.k.dtype):
        for name, scale in (("k_scale", kv.k_scale), ("v_scale", kv.v_scale)):
            if scale is None or scale.shape != kv.k.shape[:-1] or scale.dtype != jnp.float32:
                got = None if scale is None else f"{scale.dtype}{list(scale.shape)}"
                raise ValueError(
                    f"a pool of {kv.k.dtype} needs {name}, float32{list(kv.k.shape[:-1])}; got {got}. "
                    "allocate() makes a pool with its scales"
                )
    elif kv.k_scale is not None or kv.v_scale is not None:
        raise ValueError(f"k_scale and v_scale belong to int8 and fp8 pools; a pool of {kv.k.dtype} has none")
    elif kv.k.dtype not in FLOAT_DTYPES:
        raise NotImplementedError(
            f"a pool of {kv.k.dtype} is not implemented; use float32, bfloat16, float16, int8, float8_e4m3fn or "
            "float8_e5m2"
        )
    if kv.num_layers * kv.num_slots >= 2**31:
        raise ValueError(
            f"a pool has less than 2**31 token slots, all layers together, and this one has "
            f"{kv.num_layers * kv.num_slots} token slots: tokens are counted in int32. Use fewer pages"
        )
    if isinstance(layer, int) and not 0 <= layer < kv.num_layers:
        raise ValueError(f"layer={layer} is outside the pool, which has {kv.num_layers} layers")
