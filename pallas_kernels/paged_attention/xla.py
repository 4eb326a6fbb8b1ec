"""Decode attention in plain XLA: the path for the CPU.

A loop over chunks of tokens, for a few rows at a time, with an online softmax. Its cost follows the true lengths: a
whole table is never gathered. Chunks start at multiples of a fixed number of tokens, so that neither page size nor
company changes what a row's sums are made of.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import online_softmax
from pallas_kernels.kv_pages import KVPages, read_tokens, token_indices
from pallas_kernels.numerics import dot, least_rows, scaled
from pallas_kernels.online_softmax import SoftmaxState
from pallas_kernels.scores import AttentionCall
from pallas_kernels.support import Support
from pallas_kernels.tuning import DecodeTuning

SUPPORT = Support(hardware="any", proof="tested", tuning=("block_tokens",))

CHUNK_TOKENS = 128
# Rows that go through the chunks at once; a step of fewer is filled up to them. XLA's CPU backend sums and multiplies a
# few rows in another order than many, and a row's last bits would depend on its company.
ROWS_TOGETHER = 16
ROWS_IN_ONE_PRODUCT = 8
# From this many kv heads on a CPU multiplies and adds head by head faster than in one product that is mostly zeros.
PER_HEAD_FROM = 8
# Keys of the rows that go together then, a chunk of each: with the values they stay in a core's cache.
_CHUNK_BYTES = 2**20

Reader = Callable[[AttentionCall, Int[Array, " C"], Bool[Array, "B C"]], KVPages]


def paged_attention(call: AttentionCall, tuning: DecodeTuning) -> Float[Array, "B N H"]:
    """Attention output of each row's newest token."""
    chunk = tuning.block_tokens or CHUNK_TOKENS
    num_rows, together = call.q.shape[0], rows_together(call.q, call.kv, chunk)
    if num_rows == together:
        return attend_in_chunks(call, chunk, _read)
    # Rows of like length go together: a group runs as many chunks as its longest row has.
    groups = -(-num_rows // together)
    order = jnp.argsort(call.context_lens, descending=True)
    order = jnp.pad(order, (0, groups * together - num_rows), constant_values=num_rows)

    def grouped(array: Array) -> Array:
        rows = jnp.take(array, order, axis=0, mode="fill", fill_value=0)
        return rows.reshape(groups, together, *array.shape[1:])

    def attend(group: tuple[Array, Array, Array]) -> Array:
        q, tables, lens = group
        return attend_in_chunks(call._replace(q=q, block_tables=tables, context_lens=lens), chunk, _read)

    out = lax.map(attend, (grouped(call.q), grouped(call.block_tables), grouped(call.context_lens)))
    return out.reshape(-1, *call.q.shape[1:])[jnp.argsort(order)[:num_rows]]


def _read(call: AttentionCall, position: Array, visible: Array) -> KVPages:
    return read_tokens(call.kv, token_indices(call.kv, call.block_tables, position, call.layer), visible)


def rows_together(q: Float[Array, "B N H"], kv: KVPages, chunk: int) -> int:
    """How many rows go through the chunks at once, those that only fill up included."""
    least = least_rows(q.shape[1] * chunk)  # of the weights that are summed
    if kv.num_kv_heads >= PER_HEAD_FROM:
        chunk_bytes = chunk * kv.num_kv_heads * kv.head_dim * kv.k.dtype.itemsize
        return max(least, min(ROWS_TOGETHER, _CHUNK_BYTES // chunk_bytes))
    return max(least, ROWS_IN_ONE_PRODUCT)


def attend_in_chunks(call: AttentionCall, chunk: int, read: Reader) -> Float[Array, "B N H"]:
    """Attention of all rows of a call, `chunk` tokens at a time, which `read` gives as `read_tokens` does."""
    q, kv, context_lens, rule = call.q, call.kv, call.context_lens, call.rule
    num_heads = q.shape[1]
    per_head = kv.num_kv_heads >= PER_HEAD_FROM
    multiply, add_up = (_multiply_per_head, _add_up_per_head) if per_head else (_multiply, _add_up)
    query = q if per_head else _spread_over_kv_heads(q, kv.num_kv_heads)
    slopes = None if call.slopes is None else call.slopes[:, None]
    newest = context_lens - 1

    def body(i: Array, state: SoftmaxState) -> SoftmaxState:
        position = i * chunk + jnp.arange(chunk, dtype=jnp.int32)
        distance = newest[:, None] - position
        visible = rule.visible(distance)
        tokens = read(call, position, visible)
        product = multiply(query, tokens.k.astype(call.key_dtype))
        product = scaled(product, _of_query_heads(tokens.k_scale, num_heads))
        score = rule.score(product, distance[:, None], slopes)

        def weigh(weight: Array) -> Array:
            weight = scaled(weight, _of_query_heads(tokens.v_scale, num_heads)).astype(call.value_dtype)
            return add_up(weight, tokens.v.astype(call.value_dtype), query.shape[-1])

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
    # Block-diagonal over kv heads: K times the multiplications, but one product on whole tokens, which is what
    # the gather delivers. Measured faster on CPUs than any per-head form below PER_HEAD_FROM kv heads.
    num_heads = q.shape[1]
    own = jnp.arange(num_heads)[:, None] // (num_heads // num_kv_heads) == jnp.arange(num_kv_heads)
    return jnp.where(own[:, :, None], q[:, :, None, :], 0).reshape(*q.shape[:2], -1)


def _own_kv_head(out: Float[Array, "B N W"], num_kv_heads: int) -> Float[Array, "B N H"]:
    num_rows, num_heads, width = out.shape
    group = num_heads // num_kv_heads
    out = out.reshape(num_rows, num_kv_heads, group, num_kv_heads, width // num_kv_heads)
    return jnp.einsum("bkgkh->bkgh", out).reshape(num_rows, num_heads, -1)
