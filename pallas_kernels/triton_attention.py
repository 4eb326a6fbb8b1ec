"""What the Triton kernels of decode and of ragged attention share: their operands, and the loop over a row's tokens.

Slots and table entries outside the given range of tokens are never loaded; softmax is float32.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array

from pallas_kernels import online_softmax, triton_call
from pallas_kernels.numerics import precision_of, scaled
from pallas_kernels.online_softmax import SoftmaxState
from pallas_kernels.quantised import is_quantised
from pallas_kernels.scores import AttentionCall
from pallas_kernels.support import Support

SMALLEST_DOT = 16


def supported(*tuning: str) -> Support:
    """The record of an operation whose kernel has these sizes to tune."""
    return Support(
        hardware=triton_call.HARDWARE,
        proof=triton_call.PROOF,
        tuning=tuning,
        notes=("float8_e4m3fn: compute capability 8.9 and up", triton_call.OFFSET_NOTE),
    )


def operands(call: AttentionCall) -> AttentionCall:
    """The call as a kernel gets it. Raises NotImplementedError for a pool that this device cannot read."""
    triton_call.check_pool(call.kv)
    slopes = None if call.slopes is None else call.slopes.astype(jnp.float32)
    return call._replace(layer=triton_call.layer_operand(call.layer), slopes=slopes)


def padded_head(head_dim: int) -> Array:
    """The elements of a head, as many as a tile has."""
    return jnp.arange(triton_call.power_of_two(head_dim, SMALLEST_DOT))


def load_slopes(refs: AttentionCall, head: Array, mask: Array) -> Array | None:
    """The slopes of a tile's heads as a column; None if the call has none."""
    if refs.slopes is None:
        return None
    slopes: Any = refs.slopes
    return plgpu.load(slopes.at[head], mask=mask, other=0.0)[:, None]


def attend_tokens(
    refs: Any,
    query: Array,
    slope: Array | None,
    row: Array,
    kv_head: Array,
    first: Array,
    end: Array,
    block: int,
    place_keys: Callable[[Array, Array], tuple[Array, Array]],
) -> SoftmaxState:
    """The softmax of a tile of queries over the tokens from `first` to `end` of a row, `block` at a time.

    `refs` is an AttentionCall of references. `place_keys` gives, for tokens and whether they are in the range, their
    distances from the queries and whether these see them.
    """
    kv, layer = refs.kv, refs.layer[0]
    page_size, head_dim = kv.page_size, kv.head_dim
    dim = padded_head(head_dim)
    multiplying, weighing = refs.key_dtype, refs.value_dtype

    def body(i: Array, state: SoftmaxState) -> SoftmaxState:
        token = first + i * block + jnp.arange(block)
        inside = token < end
        page = plgpu.load(refs.block_tables.at[row, token // page_size], mask=inside, other=0)
        offset = token % page_size
        place = (layer, page[:, None], offset[:, None], kv_head, dim[None, :])
        k_scale, v_scale = (_load_scales(scale, (layer, page, offset, kv_head), inside) for scale in kv[2:])
        loaded = inside[:, None] & (dim < head_dim)[None, :]
        keys = _load_as(multiplying, kv.k, place, loaded)
        product = plgpu.dot(query.astype(multiplying), keys.T, precision=precision_of(multiplying))
        distance, visible = place_keys(token, inside)
        score = refs.rule.score(scaled(product, k_scale), distance, slope)

        def weigh(weight: Array) -> Array:
            values = _load_as(weighing, kv.v, place, loaded)
            return plgpu.dot(scaled(weight, v_scale).astype(weighing), values, precision=precision_of(weighing))

        return online_softmax.absorb(state, score, visible, weigh)

    start = online_softmax.start(query.shape[:1], dim.shape[0])
    return lax.fori_loop(0, jnp.maximum(pl.cdiv(end - first, block), 0), body, start)


def _load_as(dtype: jnp.dtype, ref: Any, place: tuple[Any, ...], mask: Array) -> Array:
    """What `ref` holds at `place` as `dtype`, 0 where `mask` is false."""
    if not is_quantised(ref.dtype):
        return plgpu.load(ref.at[place], mask=mask, other=0.0).astype(dtype)
    # Selected after the cast: the backend has no zero of an 8-bit float to put where nothing is loaded.
    return jnp.where(mask, plgpu.load(ref.at[place], mask=mask).astype(dtype), jnp.zeros((), dtype))


def _load_scales(ref: Any, tokens: tuple[Any, ...], mask: Array) -> Array | None:
    """The scales of a block of tokens as a row `[1, C]`, 0 where `mask` is false; None without scales."""
    return None if ref is None else plgpu.load(ref.at[tokens], mask=mask, other=0.0)[None, :]
