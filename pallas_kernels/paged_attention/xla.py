"""Decode attention in plain XLA: the path for the CPU.

Lives here: a loop over chunks of tokens, for a few rows at a time, with an online softmax.
Promises: cost follows the true lengths; chunks start at multiples of a fixed number of tokens, so that neither page
size nor company changes what a row's sums are made of.
Must not know: how wide a table is beyond its shape. It never gathers a whole one.
"""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels import online_softmax
from pallas_kernels.kv_pages import KVPages, rows_of_positions, scales_of_rows
from pallas_kernels.online_softmax import SoftmaxState
from pallas_kernels.paged_attention.tuned import DecodeTuning
from pallas_kernels.products import dot
from pallas_kernels.quantised import key_dtype, scaled, value_dtype
from pallas_kernels.row_sums import least_rows
from pallas_kernels.scores import ScoreRule
from pallas_kernels.support import Support

SUPPORT = Support(hardware="any", proof="tested", tuning=("block_tokens",))

CHUNK_TOKENS = 128
# Rows that go through the chunks at once; a step of fewer is filled up to them. XLA's CPU backend sums and multiplies a
# few rows in another order than many, and a row's last bits would depend on its company.
ROWS_TOGETHER = 16
ROWS_IN_ONE_PRODUCT = 8
# From so many kv heads on a CPU multiplies and adds head by head faster than in one product that is mostly zeros.
PER_HEAD_FROM = 8
# Keys of the rows that go together then, a chunk of each: with the values they stay in a core's cache.
_CHUNK_BYTES = 2**20


def paged_attention(
    q: Float[Array, "B N H"],
    kv: KVPages,
    block_tables: Int[Array, "B M"],
    context_lens: Int[Array, " B"],
    layer: ArrayLike,
    rule: ScoreRule,
    alibi_slopes: Float[Array, " N"] | None,
    *,
    tuning: DecodeTuning | None = None,
) -> Float[Array, "B N H"]:
    """Attention output of each row's newest token."""
    SUPPORT.check("xla", kv, q, rule, alibi_slopes, tuning)
    attend = partial(
        _attend_together,
        kv=kv,
        layer=layer,
        rule=rule,
        slopes=None if alibi_slopes is None else alibi_slopes[:, None],
        chunk=_chunk_tokens(tuning),
    )
    num_rows, together = q.shape[0], rows_together(q, kv, _chunk_tokens(tuning))
    if num_rows == together:
        return attend(q, block_tables, context_lens)
    # Rows of like length go together: a group runs as many chunks as its longest row has.
    groups = -(-num_rows // together)
    order = jnp.argsort(context_lens, descending=True)
    order = jnp.pad(order, (0, groups * together - num_rows), constant_values=num_rows)

    def grouped(array: Array) -> Array:
        rows = jnp.take(array, order, axis=0, mode="fill", fill_value=0)
        return rows.reshape(groups, together, *array.shape[1:])

    out = lax.map(lambda group: attend(*group), (grouped(q), grouped(block_tables), grouped(context_lens)))
    return out.reshape(-1, *q.shape[1:])[jnp.argsort(order)[:num_rows]]


def _chunk_tokens(tuning: DecodeTuning | None) -> int:
    return (tuning and tuning.block_tokens) or CHUNK_TOKENS


def rows_together(q: Float[Array, "B N H"], kv: KVPages, chunk: int) -> int:
    """How many rows go through the chunks at once, those that only fill up included."""
    least = least_rows(q.shape[1] * chunk)  # of the weights that are summed
    if kv.num_kv_heads >= PER_HEAD_FROM:
        chunk_bytes = chunk * kv.num_kv_heads * kv.head_dim * kv.k.dtype.itemsize
        return max(least, min(ROWS_TOGETHER, _CHUNK_BYTES // chunk_bytes))
    return max(least, ROWS_IN_ONE_PRODUCT)


def _attend_together(
    q: Float[Array, "B N H"],
    block_tables: Int[Array, "B M"],
    context_lens: Int[Array, " B"],
    *,
    kv: KVPages,
    layer: ArrayLike,
    rule: ScoreRule,
    slopes: Float[Array, "N 1"] | None,
    chunk: int,
) -> Float[Array, "B N H"]:
    k_rows, v_rows = kv.token_rows()
    k_scales, v_scales = kv.scale_rows()
    per_head = kv.num_kv_heads >= PER_HEAD_FROM
    multiply, add_up = (_multiply_per_head, _add_up_per_head) if per_head else (_multiply, _add_up)
    weighing = value_dtype(q.dtype, v_rows.dtype)
    query = q if per_head else _spread_over_kv_heads(q, kv.num_kv_heads)
    newest = context_lens - 1

    def body(i: Array, state: SoftmaxState) -> SoftmaxState:
        position = i * chunk + jnp.arange(chunk, dtype=jnp.int32)
        rows = rows_of_positions(kv, block_tables, position, layer)
        distance = newest[:, None] - position
        visible = rule.visible(distance)
        keys = jnp.take(k_rows, rows, axis=0, mode="clip").astype(key_dtype(q.dtype, k_rows.dtype))
        # Values are selected, not multiplied by 0: an unfilled slot may hold NaN or infinity.
        values = jnp.where(visible[..., None], jnp.take(v_rows, rows, axis=0, mode="clip"), 0)
        k_scale, v_scale = (
            _of_query_heads(scales_of_rows(scales, rows, visible), q.shape[1]) for scales in (k_scales, v_scales)
        )
        product = scaled(multiply(query, keys), k_scale)
        score = rule.score(product, distance[:, None], slopes)

        def weigh(weight: Array) -> Array:
            return add_up(scaled(weight, v_scale).astype(weighing), values.astype(weighing), query.shape[-1])

        return online_softmax.absorb(state, score, visible[:, None], weigh)

    start = online_softmax.start(q.shape[:2], query.shape[-1])
    first = jnp.where(context_lens > 0, rule.first_visible(newest), jnp.iinfo(jnp.int32).max).min() // chunk
    last = (context_lens.max() + chunk - 1) // chunk
    out = online_softmax.finish(lax.fori_loop(first, last, body, start))
    return (out if per_head else _own_kv_head(out, kv.num_kv_heads)).astype(q.dtype)


def _multiply(query: Float[Array, "B N W"], keys: Float[Array, "B C W"]) -> Float[Array, "B N C"]:
    return dot("bnw,bcw->bnc", query, keys)


def _add_up(weight: Float[Array, "B N C"], values: Float[Array, "B C W"], width: int) -> Float[Array, "B N W"]:
    return dot("bnc,bcw->bnw", weight, values)


def _multiply_per_head(query: Float[Array, "B N H"], keys: Float[Array, "B C W"]) -> Float[Array, "B N C"]:
    num_rows, num_heads, head_dim = query.shape
    keys = keys.reshape(num_rows, keys.shape[1], -1, 1, head_dim).astype(jnp.float32)
    # Elementwise and then summed: XLA's CPU backend makes one loop of it, and small products of it otherwise.
    query = query.reshape(num_rows, 1, keys.shape[2], -1, head_dim).astype(jnp.float32)
    return (query * keys).sum(axis=-1).reshape(num_rows, -1, num_heads).swapaxes(1, 2)


def _add_up_per_head(weight: Float[Array, "B N C"], values: Float[Array, "B C W"], width: int) -> Float[Array, "B N H"]:
    num_rows, num_heads, chunk = weight.shape
    values = values.reshape(num_rows, chunk, -1, 1, width).astype(jnp.float32)
    weight = weight.astype(jnp.float32).swapaxes(1, 2).reshape(num_rows, chunk, values.shape[2], -1, 1)
    return (weight * values).sum(axis=1).reshape(num_rows, num_heads, width)


def _of_query_heads(scale: Float[Array, "B K C"] | None, num_heads: int) -> Float[Array, "B N C"] | None:
    return None if scale is None else jnp.repeat(scale, num_heads // scale.shape[1], axis=1)


def _spread_over_kv_heads(q: Float[Array, "B N H"], num_kv_heads: int) -> Float[Array, "B N W"]:
    # Block-diagonal over kv heads: K times the multiplications, but one product on whole token rows, which is what
    # the gather delivers. Measured faster on CPUs than any per-head form below PER_HEAD_FROM kv heads.
    num_heads = q.shape[1]
    own = jnp.arange(num_heads)[:, None] // (num_heads // num_kv_heads) == jnp.arange(num_kv_heads)
    return jnp.where(own[:, :, None], q[:, :, None, :], 0).reshape(*q.shape[:2], -1)


def _own_kv_head(out: Float[Array, "B N W"], num_kv_heads: int) -> Float[Array, "B N H"]:
    num_rows, num_heads, width = out.shape
    group = num_heads // num_kv_heads
    out = out.reshape(num_rows, num_kv_heads, group, num_kv_heads, width // num_kv_heads)
    return jnp.einsum("bkgkh->bkgh", out).reshape(num_rows, num_heads, -1)
