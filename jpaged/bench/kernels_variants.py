"""The ways of doing one operation that a kernel benchmark compares.

The ways of attention give the same output, which is checked before anything is timed; none recompiles.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jpaged.bench.kernels_points import Arrays, Point
from jpaged.bench.kernels_timing import Run, compiled_run, donating_run
from pallas_kernels import (
    KVPages,
    beside_attention,
    copy_pages,
    paged_attention,
    ragged_paged_attention,
    write_kv,
)
from pallas_kernels.numerics import dot
from pallas_kernels.paged_attention import xla as decode_xla
from pallas_kernels.scores import AttentionCall, ScoreRule

COPY, GATHER = "copy", "gather"
CONTIGUOUS = ("contiguous", "contiguous, chunks", "contiguous, cuDNN")
"""The same attention over a cache without pages: in one piece, in chunks as `xla` has them, and NVIDIA's own."""


def variants_of(
    point: Point, arrays: Arrays, implementations: Sequence[str], *, interpret: bool = False
) -> dict[str, Callable[[], Run]]:
    """How each way of doing a point is made ready, by name; a Run does the point's layers once.

    Making one ready raises NotImplementedError where it cannot do the point.
    """
    made: dict[str, Callable[[], Run]] = {}
    for name in implementations:
        how: dict[str, Any] = {"implementation": name, "interpret": interpret and name in ("triton", "mosaic_gpu")}
        if point.operation in ("write", "copy"):
            made[name] = partial(_moves, point, arrays, how)
        else:
            made[name] = partial(compiled_run, paged(point, **how), arrays)
    if point.operation in ("decode", "ragged"):
        made[GATHER] = partial(compiled_run, _chained(_gathered, point.layers), arrays)
    if point.operation == "decode":
        made |= _without_pages(point, arrays)
    made[COPY] = lambda: copy_run(point.layers * point.bytes_moved, point.pool_dtype)
    return made


def paged(point: Point, **how: Any) -> Callable[[Arrays], Array]:
    """The layers of a point's attention as one function; `how` goes to each call of the operation."""

    def decode(q: Array, a: Arrays, layer: int) -> Array:
        return paged_attention(q, a.kv, a.block_tables, a.context_lens, layer=layer, **how)

    def ragged(q: Array, a: Arrays, layer: int) -> Array:
        return ragged_paged_attention(q, a.kv, a.block_tables, a.context_lens, a.query_starts, layer=layer, **how)

    return _chained(decode if point.operation == "decode" else ragged, point.layers)


def _chained(step: Callable[..., Array], layers: int) -> Callable[[Any], Array]:
    """`step` once per layer, the queries of each the output of the one before, as in a model."""

    def program(arrays: Any) -> Array:
        q = arrays.q
        for layer in range(layers):
            q = step(q, arrays, layer)
        return q

    return program


def _moves(point: Point, arrays: Arrays, how: dict[str, Any]) -> Run:
    """Writes or page copies into a pool of their own, which is donated from call to call."""
    how = how | {"implementation": beside_attention(how["implementation"])}
    tables, heads, last = arrays.block_tables, point.heads, point.context - 1

    def write(kv: KVPages, tokens: Array) -> tuple[KVPages, None]:
        slots = tables[:, last // point.page_size] * point.page_size + last % point.page_size
        for layer in range(point.layers):
            kv = write_kv(kv, tokens, tokens, slots, layer=layer, **how)
        return kv, None

    def copy(kv: KVPages, _: Array) -> tuple[KVPages, None]:
        # From each row's first page to its last.
        return copy_pages(kv, tables[:, 0], tables[:, point.pages_a_row - 1], **how), None

    if point.operation == "copy" and point.pages_a_row < 2:
        raise NotImplementedError(
            f"a copy within rows of one page: give a context above page_size={point.page_size}, not {point.context}"
        )
    tokens = jnp.ones((point.batch, heads.num_kv_heads, heads.head_dim), point.dtype)
    return donating_run([jax.tree.map(jnp.copy, arrays.kv)], write if point.operation == "write" else copy, tokens)


def _without_pages(point: Point, arrays: Arrays) -> dict[str, Callable[[], Run]]:
    steps = [_whole_decode, _chunked_decode]
    if jax.default_backend() == "gpu" and point.dtype != "float32":
        steps.append(_cudnn_decode)
    flat = cache(partial(_flattened, point, arrays))
    return {
        name: lambda step=step: compiled_run(_chained(step, point.layers), flat())
        for name, step in zip(CONTIGUOUS, steps, strict=False)
    }


def _flattened(point: Point, arrays: Arrays) -> Arrays:
    """The same tokens as a cache without pages: each row's `[T, K, H]` in one piece, with room for whole chunks.

    They have the dtype of the queries.
    """
    chunk = min(decode_xla.CHUNK_TOKENS, point.context)
    padding = ((0, 0), (0, 0), (0, -point.context % chunk), (0, 0), (0, 0))

    @jax.jit
    def flatten(arrays: Arrays) -> Arrays:
        layers = [_gathered_kv(arrays, layer, point.dtype) for layer in range(point.layers)]
        k, v = (jnp.pad(jnp.stack([layer[i][:, : point.context] for layer in layers]), padding) for i in (0, 1))
        return arrays._replace(kv=KVPages(k, v))

    return flatten(arrays)


def _gathered_kv(a: Arrays, layer: int, dtype: Any) -> tuple[Float[Array, "B T K H"], Float[Array, "B T K H"]]:
    """Keys and values of every column of the tables, in `dtype`."""

    def gather(pages: Array, scale: Array | None) -> Array:
        found = pages[layer, a.block_tables].astype(dtype)
        if scale is not None:
            found = (found * scale[layer, a.block_tables][..., None]).astype(dtype)
        return found.reshape(a.block_tables.shape[0], -1, *found.shape[-2:])

    return gather(a.kv.k, a.kv.k_scale), gather(a.kv.v, a.kv.v_scale)


def _attend(q: Float[Array, "B Q N H"], k: Array, v: Array, lens: Array) -> Float[Array, "B Q N H"]:
    """Softmax attention in one piece; the queries are the newest tokens, each sees the keys up to itself."""
    num_kv_heads = k.shape[2]
    grouped = q.reshape(*q.shape[:2], num_kv_heads, -1, q.shape[-1])
    score = dot("bqkgh,btkh->bkgqt", grouped, k) * q.shape[-1] ** -0.5
    position = lens[:, None] - q.shape[1] + jnp.arange(q.shape[1])
    seen = jnp.arange(k.shape[1]) <= position[..., None]
    weight = jax.nn.softmax(jnp.where(seen[:, None, None], score, -1e30), axis=-1).astype(v.dtype)
    return dot("bkgqt,btkh->bqkgh", weight, v).reshape(q.shape).astype(q.dtype)


def _gathered(q: Array, a: Arrays, layer: int) -> Array:
    rows = q.reshape(a.context_lens.shape[0], -1, *q.shape[1:])
    return _attend(rows, *_gathered_kv(a, layer, q.dtype), a.context_lens).reshape(q.shape)


def _whole_decode(q: Array, a: Arrays, layer: int) -> Array:
    return _attend(q[:, None], a.kv.k[layer], a.kv.v[layer], a.context_lens)[:, 0]


def _cudnn_decode(q: Array, a: Arrays, layer: int) -> Array:
    return jax.nn.dot_product_attention(
        q[:, None], a.kv.k[layer], a.kv.v[layer], key_value_seq_lengths=a.context_lens, implementation="cudnn"
    )[:, 0]


def _chunked_decode(q: Array, a: Arrays, layer: int) -> Array:
    """The loop over chunks that `xla` does, with slices in place of gathers: what it would do without pages."""
    num_rows, _, head_dim = q.shape
    length, num_kv_heads = a.kv.k.shape[2:4]
    kv, chunk = a.kv, min(decode_xla.CHUNK_TOKENS, length)
    rows = min(decode_xla.rows_together(q, kv, decode_xla.CHUNK_TOKENS), num_rows)

    def attend(first_row: Array) -> Array:
        def read(call: AttentionCall, position: Array, visible: Array) -> KVPages:
            place, shape = (layer, first_row, position[0], 0, 0), (1, rows, chunk, num_kv_heads, head_dim)
            return KVPages(*(lax.dynamic_slice(x, place, shape).reshape(rows, chunk, -1) for x in (kv.k, kv.v)))

        own_q, own_lens = (lax.dynamic_slice_in_dim(x, first_row, rows) for x in (q, a.context_lens))
        call = AttentionCall(own_q, kv, None, own_lens, None, layer, ScoreRule(head_dim**-0.5), None)  # pyright: ignore[reportArgumentType]
        return decode_xla.attend_in_chunks(call, chunk, read)

    firsts = jnp.minimum(jnp.arange(0, num_rows, rows), num_rows - rows)
    out = lax.map(attend, firsts)
    return jnp.zeros_like(q).at[firsts[:, None] + jnp.arange(rows)].set(out)


def copy_run(num_bytes: int, dtype: Any) -> Run:
    """A copy into an array that is there already, which reads and writes `num_bytes` in all."""
    source = jnp.ones(max(1, num_bytes // (2 * dtype.itemsize)), dtype)
    # Behind the barrier it is no longer an argument handed through, which would copy nothing.
    return donating_run([jnp.zeros_like(source)], lambda _, source: (lax.optimization_barrier(source), None), source)
