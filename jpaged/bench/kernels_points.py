"""The points of a kernel benchmark: which shapes, which bytes, and their arrays.

`bytes_moved` is what an operation cannot do without. Page tables are permuted, and a seed decides everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jpaged.config.declaration import about, check_options, option, require_int
from jpaged.config.options import DTYPES, KV_CACHE_DTYPES
from jpaged.runtime.memory import free_memory, pool_dtype
from pallas_kernels import KVPages, allocate
from pallas_kernels.quantised import SCALE_BYTES, is_quantised, quantise

Operation = Literal["decode", "ragged", "write", "copy"]
_PERIOD = 1_000_003


@dataclass(frozen=True, slots=True, order=True)
class HeadShape:
    """`num_heads` query heads over `num_kv_heads` kv heads of `head_dim` elements."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for name, value in (("heads", self.num_heads), ("kv heads", self.num_kv_heads), ("head_dim", self.head_dim)):
            require_int(name, value, 1, 1024)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"heads={self}: {self.num_heads} query heads do not share {self.num_kv_heads} kv heads")

    def __str__(self) -> str:
        return f"{self.num_heads}x{self.num_kv_heads}x{self.head_dim}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One shape of one operation. A write is one token per row, a copy one page per row. Raises ValueError."""

    operation: Operation = field(metadata=about("What is called.", choices=get_args(Operation)))
    page_size: int = field(metadata=about("Tokens per page.", low=1, high=65536))
    batch: int = field(metadata=about("Rows.", low=1, high=4096))
    context: int = field(metadata=about("Tokens per row.", low=1, high=2**20))
    heads: HeadShape
    dtype: str = option("float32", "The queries' type.", choices=DTYPES)
    kv_dtype: str = option("auto", "The pool's type.", choices=KV_CACHE_DTYPES)
    table_tokens: int | None = option(None, "Tokens that a row's block table has room for; default: the context.")
    queries: int = option(1, "Newest tokens per row that a ragged call asks for.")
    layers: int = option(1, "Calls that make one program, each on its own layer.", low=1, high=1024)

    def __post_init__(self) -> None:
        check_options(self)
        require_int("queries", self.queries, 1, self.context)
        if self.table_tokens is not None:
            require_int("table_tokens", self.table_tokens, self.context, 2**20)

    @property
    def pool_dtype(self) -> Any:
        """The dtype of the keys and values in the pool."""
        return pool_dtype(self.kv_dtype, self.dtype)

    @property
    def table_width(self) -> int:
        """Columns of a block table."""
        return -(-(self.table_tokens or self.context) // self.page_size)

    @property
    def pages_a_row(self) -> int:
        """Pages that a row's context needs."""
        return -(-self.context // self.page_size)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys, values and scales in one layer."""
        dtype = self.pool_dtype
        scale = SCALE_BYTES if is_quantised(dtype) else 0
        return 2 * self.heads.num_kv_heads * (self.heads.head_dim * dtype.itemsize + scale)

    @property
    def bytes_moved(self) -> int:
        """Bytes that one layer's call must read and write at the least.

        Attention: each row's keys and values once, queries and outputs. A write: the tokens and their slots. A copy:
        the pages, twice.
        """
        itemsize = jnp.dtype(self.dtype).itemsize
        if self.operation in ("decode", "ragged"):
            queries = self.batch * self.queries * self.heads.num_heads * self.heads.head_dim * itemsize
            return self.batch * self.context * self.token_bytes + 2 * queries
        if self.operation == "write":
            given = 2 * self.heads.num_kv_heads * self.heads.head_dim * itemsize
            return self.batch * (given + self.token_bytes)
        return 2 * self.batch * self.page_size * self.token_bytes


def points_of(
    operations: Sequence[Operation], page_sizes: Sequence[int], batches: Sequence[int], contexts: Sequence[int],
    heads: Sequence[HeadShape], dtypes: Sequence[str], kv_dtypes: Sequence[str], *, table_tokens: int | None = None,
    queries: int = 128, layers: int = 1,
) -> list[Point]:  # fmt: skip
    """Every combination; a write and a copy cost the same at any context: the longest. Raises ValueError."""
    sweep = product(operations, heads, dtypes, kv_dtypes, batches, contexts, page_sizes)
    points = (
        Point(
            operation=operation, page_size=page_size, batch=batch, heads=shape, dtype=dtype, kv_dtype=kv_dtype,
            context=context if operation in ("decode", "ragged") else max(contexts), table_tokens=table_tokens,
            queries=min(queries, context) if operation == "ragged" else 1, layers=layers,
        )
        for operation, shape, dtype, kv_dtype, batch, context, page_size in sweep
    )  # fmt: skip
    return list(dict.fromkeys(points))


def parse_heads(text: str) -> HeadShape:
    """A shape from a text such as 32x8x128. Raises ValueError."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise ValueError(f"heads={text!r}: give query heads x kv heads x head_dim, such as 32x8x128")
    return HeadShape(*(int(part) for part in parts))


def parse_integers(name: str, text: str) -> list[int]:
    """Integers from a text such as 1,8,32. Raises ValueError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ValueError(f"{name}={text!r}: give integers with commas between them, such as 1,8,32")
    return [int(part) for part in parts]


class Arrays(NamedTuple):
    """What the operations of a point are given. Lengths and tables are the same in every layer."""

    q: jax.Array
    kv: KVPages
    block_tables: jax.Array
    context_lens: jax.Array
    query_starts: jax.Array


def arrays_of(point: Point, seed: int = 0) -> Arrays:
    """The arrays of a point: random queries, a pool of full pages, permuted tables whose spare columns are page 0."""
    rng = np.random.default_rng(seed)
    num_pages = point.batch * point.pages_a_row
    tables = np.zeros((point.batch, point.table_width), np.int32)
    tables[:, : point.pages_a_row] = 1 + rng.permutation(num_pages).reshape(point.batch, -1)
    num_queries = point.batch * point.queries
    shape = (num_queries, point.heads.num_heads, point.heads.head_dim)
    starts = np.arange(point.batch + 1, dtype=np.int32) * point.queries
    return Arrays(
        q=jnp.asarray(rng.standard_normal(shape, dtype=np.float32), point.dtype),
        kv=_filled(point, num_pages + 1, seed),
        block_tables=jnp.asarray(tables),
        context_lens=jnp.full(point.batch, point.context, jnp.int32),
        query_starts=jnp.asarray(starts),
    )


def _filled(point: Point, num_pages: int, seed: int) -> KVPages:
    """A pool of random tokens. A block of them is repeated with a prime period, which is fast, and looks the same."""
    heads, dtype = point.heads, point.pool_dtype
    empty = jax.eval_shape(
        lambda: allocate(point.layers, num_pages, point.page_size, heads.num_kv_heads, heads.head_dim, dtype)
    )
    tokens = _PERIOD // (heads.num_kv_heads * heads.head_dim) | 1
    block = np.random.default_rng(seed).standard_normal((2, tokens, heads.num_kv_heads, heads.head_dim), np.float32)

    @jax.jit
    def fill(block: jax.Array) -> KVPages:
        rows = jnp.arange(num_pages * point.page_size) % tokens
        k, v = (quantise(part, dtype) if is_quantised(dtype) else (part.astype(dtype), None) for part in block)

        def spread(part: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
            return jnp.broadcast_to(jnp.take(part, rows, axis=0).reshape(like.shape[1:]), like.shape)

        return jax.tree.map(spread, KVPages(k[0], v[0], k[1], v[1]), empty)

    return fill(jnp.asarray(block))


def check_memory(point: Point) -> None:
    """Raise ValueError if a point's arrays do not fit: the pool, a copy of it without pages, a gathered layer."""
    plain = 2 * point.heads.num_kv_heads * point.heads.head_dim * jnp.dtype(point.dtype).itemsize
    contiguous = point.layers * point.batch * point.context * plain
    gathered = point.batch * point.table_width * point.page_size * plain
    pool = point.layers * (point.batch * point.pages_a_row + 1) * point.page_size * point.token_bytes
    need = pool + 2 * contiguous + 2 * gathered
    free, where, _ = free_memory(jax.devices()[0])
    if free is not None and need > free:
        raise ValueError(
            f"batch={point.batch}, context={point.context}, heads={point.heads}: needs {need / 2**30:.1f} GiB with "
            f"what it is compared to, {free / 2**30:.1f} GiB are free on the {where}; lower one of them"
        )
