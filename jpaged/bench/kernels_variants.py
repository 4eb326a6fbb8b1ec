"""The ways of doing one operation that a kernel benchmark compares.

Lives here: `variants_of`: every implementation, gathering whole tables, a cache without pages, and a plain copy.
Promises: the ways of attention give the same output, which is checked before anything is timed; none recompiles.
Must not know: clocks, what is printed.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jpaged.bench.kernels_points import Arrays, Point
from pallas_kernels import (
    KVPages,
    beside_attention,
    copy_pages,
    online_softmax,
    paged_attention,
    ragged_paged_attention,
    write_kv,
)
from pallas_kernels.numerics import dot
from pallas_kernels.paged_attention import xla as decode_xla

Run = Callable[[], Any]
COPY, GATHER = "copy", "gather"
CONTIGUOUS = ("contiguous", "contiguous, chunks", "contiguous, cuDNN")
"""The same attention over a cache without pages: in one piece, in chunks as `xla` has them, and NVIDIA's own."""


def variants_of(
    point: Point, arrays: Arrays, implementations: Sequence[str], *, interpret: bool = False, tuning: Any = None
) -> dict[str, Callable[[], Run]]:
    """How each way of doing a point is made ready, by name; a Run does the point's layers once.

    Making one ready raises NotImplementedError where it cannot do the point.
    """
    made: dict[str, Callable[[], Run]] = {}
    for name in implementations:
        how: dict[str, Any] = {"implementation": name, "interpret": interpret and name in ("triton", "mosaic_gpu")}
        if point.operation in ("write", "copy"):
            made[name] = _moves(point, arrays, how)
        else:
            made[name] = _paged(point, arrays, how | {"tuning": tuning})
    if point.operation == "decode":
        made |= _decode_baselines(point, arrays)
    if point.operation == "ragged":
        made[GATHER] = lambda: _chained(_gathered_ragged, arrays, point.layers)
    made[COPY] = lambda: _copy(point)
    return made


def _chained(step: Callable[..., Array], arrays: Any, layers: int) -> Run:
    """One program that calls `step` once a layer, the queries of each the output of the one before, as in a model."""

    @jax.jit
    def program(arrays: Any) -> Array:
        q = arrays.q
        for layer in range(layers):
            q = step(q, arrays, layer)
        return q

    compiled = program.lower(arrays).compile()
    return lambda: compiled(arrays)


def _paged(point: Point, arrays: Arrays, how: dict[str, Any]) -> Callable[[], Run]:
    def decode(q: Array, a: Arrays, layer: int) -> Array:
        return paged_attention(q, a.kv, a.block_tables, a.context_lens, layer=layer, **how)

    def ragged(q: Array, a: Arrays, layer: int) -> Array:
        return ragged_paged_attention(q, a.kv, a.block_tables, a.context_lens, a.query_starts, layer=layer, **how)

    return lambda: _chained(decode if point.operation == "decode" else ragged, arrays, point.layers)


def _moves(point: Point, arrays: Arrays, how: dict[str, Any]) -> Callable[[], Run]:
    """Writes or page copies into a pool of their own, which is donated from call to call."""
    name = how["implementation"]
    how = how | {"implementation": beside_attention(name)}
    tables = arrays.block_tables

    def write(kv: KVPages, tokens: Array) -> KVPages:
        last = point.context - 1
        slots = tables[:, last // point.page_size] * point.page_size + last % point.page_size
        for layer in range(point.layers):
            kv = write_kv(kv, tokens, tokens, slots, layer=layer, **how)
        return kv

    def copy(kv: KVPages, _: Array) -> KVPages:
        # From each row's first page to its last; a row of one page copies to its neighbour's, if it has one.
        return copy_pages(kv, *_page_pairs(point, tables), **how)

    def ready() -> Run:
        heads = point.heads
        tokens = jnp.ones((point.batch, heads.num_kv_heads, heads.head_dim), point.dtype)
        step = write if point.operation == "write" else copy
        kv = jax.tree.map(jnp.copy, arrays.kv)
        program = jax.jit(step, donate_argnums=0).lower(kv, tokens).compile()
        held = [kv]

        def run() -> KVPages:
            held[0] = program(held[0], tokens)
            return held[0]

        return run

    return ready


def _page_pairs(point: Point, tables: Array) -> tuple[Array, Array]:
    if point.pages_a_row < 2:
        raise NotImplementedError(
            f"a copy within rows of one page: give a context above page_size={point.page_size}, not {point.context}"
        )
    return tables[:, 0], tables[:, point.pages_a_row - 1]


class _Flat(NamedTuple):
    """Queries and lengths, and keys and values `[L, B, T, K, H]` in the order of the tokens, in the queries' dtype."""

    q: Array
    k: Array
    v: Array
    context_lens: Array


def _decode_baselines(point: Point, arrays: Arrays) -> dict[str, Callable[[], Run]]:
    flat: list[_Flat] = []

    def once() -> _Flat:
        if not flat:
            flat.append(_flattened(point, arrays))
        return flat[0]

    made: dict[str, Callable[[], Run]] = {
        GATHER: lambda: _chained(_gathered_decode, arrays, point.layers),
        CONTIGUOUS[0]: lambda: _chained(_whole_decode, once(), point.layers),
        CONTIGUOUS[1]: lambda: _chained(_chunked_decode, once(), point.layers),
    }
    if jax.default_backend() == "gpu" and point.dtype != "float32":
        made[CONTIGUOUS[2]] = lambda: _chained(_cudnn_decode, once(), point.layers)
    return made


def _flattened(point: Point, arrays: Arrays) -> _Flat:
    """The same tokens as a cache without pages."""

    @jax.jit
    def flatten(arrays: Arrays) -> _Flat:
        layers = [_gathered(arrays, layer, point.dtype) for layer in range(point.layers)]
        k, v = (jnp.stack([layer[i][:, : point.context] for layer in layers]) for i in (0, 1))
        return _Flat(arrays.q, k, v, arrays.context_lens)

    return flatten(arrays)


def _gathered(a: Arrays, layer: int, dtype: Any) -> tuple[Float[Array, "B T K H"], Float[Array, "B T K H"]]:
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


def _gathered_decode(q: Array, a: Arrays, layer: int) -> Array:
    return _attend(q[:, None], *_gathered(a, layer, q.dtype), a.context_lens)[:, 0]


def _gathered_ragged(q: Array, a: Arrays, layer: int) -> Array:
    rows = q.reshape(a.context_lens.shape[0], -1, *q.shape[1:])
    return _attend(rows, *_gathered(a, layer, q.dtype), a.context_lens).reshape(q.shape)


def _whole_decode(q: Array, a: _Flat, layer: int) -> Array:
    return _attend(q[:, None], a.k[layer], a.v[layer], a.context_lens)[:, 0]


def _cudnn_decode(q: Array, a: _Flat, layer: int) -> Array:
    return jax.nn.dot_product_attention(
        q[:, None], a.k[layer], a.v[layer], key_value_seq_lengths=a.context_lens, implementation="cudnn"
    )[:, 0]


def _chunked_decode(q: Array, a: _Flat, layer: int) -> Array:
    """The loop over chunks that `xla` does, with slices in place of gathers: what it would do without pages."""
    num_rows = q.shape[0]
    rows = min(decode_xla.rows_together(q, KVPages(a.k, a.v), decode_xla.CHUNK_TOKENS), num_rows)

    def attend(first_row: Array) -> Array:
        return _attend_rows(lax.dynamic_slice_in_dim(q, first_row, rows), a, layer, first_row)

    firsts = jnp.minimum(jnp.arange(0, num_rows, rows), num_rows - rows)
    out = lax.map(attend, firsts)
    return jnp.zeros_like(q).at[firsts[:, None] + jnp.arange(rows)].set(out)


def _attend_rows(q: Array, a: _Flat, layer: int, first_row: Array) -> Array:
    rows, _, head_dim = q.shape
    length, num_kv_heads = a.k.shape[2], a.k.shape[3]
    chunk = min(decode_xla.CHUNK_TOKENS, length)
    lens = lax.dynamic_slice_in_dim(a.context_lens, first_row, rows)
    grouped = q.reshape(rows, num_kv_heads, -1, head_dim)
    per_head = num_kv_heads >= decode_xla.PER_HEAD_FROM

    def body(i: Array, state: online_softmax.SoftmaxState) -> online_softmax.SoftmaxState:
        start = jnp.minimum(i * chunk, length - chunk)
        place = (layer, first_row, start, 0, 0)
        keys, values = (lax.dynamic_slice(x, place, (1, rows, chunk, num_kv_heads, head_dim))[0] for x in (a.k, a.v))
        position = start + jnp.arange(chunk)
        seen = ((position >= i * chunk) & (position < lens[:, None]))[:, None, None]
        if per_head:
            product = (grouped[:, None].astype(jnp.float32) * keys[..., None, :].astype(jnp.float32)).sum(axis=-1)
            score = product.transpose(0, 2, 3, 1) * head_dim**-0.5
        else:
            score = dot("bkgh,btkh->bkgt", grouped, keys) * head_dim**-0.5

        def weigh(weight: Array) -> Array:
            if per_head:
                return (weight.transpose(0, 3, 1, 2)[..., None] * values[..., None, :].astype(jnp.float32)).sum(axis=1)
            return dot("bkgt,btkh->bkgh", weight.astype(values.dtype), values)

        return online_softmax.absorb(state, score, seen, weigh)

    start = online_softmax.start(grouped.shape[:3], head_dim)
    out = online_softmax.finish(lax.fori_loop(0, -(-lens.max() // chunk), body, start))
    return out.reshape(q.shape).astype(q.dtype)


def _copy(point: Point) -> Run:
    """A copy into an array that is there already: it reads and writes as many bytes as the point's layers move."""
    size = max(1, point.layers * point.bytes_moved // (2 * point.pool_dtype.itemsize))
    source = jnp.ones(size, point.pool_dtype)
    # Behind the barrier it is no longer an argument handed through, which would copy nothing.
    program = jax.jit(lambda source, target: lax.optimization_barrier(source), donate_argnums=1, keep_unused=True)
    compiled = program.lower(source, source).compile()
    held = [jnp.zeros_like(source)]

    def run() -> Array:
        held[0] = compiled(source, held[0])
        return held[0]

    return run
