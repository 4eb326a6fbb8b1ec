"""Decode attention for NVIDIA GPUs: one program a row, kv head and split, through Pallas' Triton backend.

Lives here: the split-K kernel.
Promises: slots and table entries past a row's end are never loaded; softmax and merge are float32.
Must not know: how wide a table is beyond its shape; splits follow each row's true length.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels import online_softmax, triton_call
from pallas_kernels.kv_pages import KVPages
from pallas_kernels.online_softmax import SoftmaxState
from pallas_kernels.paged_attention import splits
from pallas_kernels.paged_attention.tuned import DecodeTuning
from pallas_kernels.products import precision_of
from pallas_kernels.quantised import key_dtype, scaled, value_dtype
from pallas_kernels.scores import ScoreRule
from pallas_kernels.support import Support

SUPPORT = Support(
    hardware="NVIDIA, compute capability 8.0 and up",
    proof="interpreted; compiled",
    tuning=("block_tokens", "splits", "num_warps", "num_stages"),
    notes=(triton_call.CONVERSION_NOTE, triton_call.OFFSET_NOTE),
)


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
    interpret: bool = False,
) -> Float[Array, "B N H"]:
    """Attention output of each row's newest token."""
    SUPPORT.check("triton", kv, q, rule, alibi_slopes, tuning)
    triton_call.check_pool(kv)
    num_rows, num_heads, head_dim = q.shape
    block, num_splits, num_warps, num_stages = _sizes(tuning, q, block_tables, kv)
    kernel = partial(
        _attend_split,
        rule=rule,
        page_size=kv.page_size,
        head_dim=head_dim,
        group=num_heads // kv.num_kv_heads,
        num_splits=num_splits,
        block=block,
        has_slopes=alibi_slopes is not None,
    )
    slopes = jnp.zeros(num_heads, jnp.float32) if alibi_slopes is None else alibi_slopes.astype(jnp.float32)
    out, log_total = triton_call.call(
        kernel,
        name="paged_attention",
        grid=(num_rows, kv.num_kv_heads, num_splits),
        out_shape=[
            jax.ShapeDtypeStruct(
                (num_rows, num_splits, num_heads, head_dim), q.dtype if num_splits == 1 else jnp.float32
            ),
            jax.ShapeDtypeStruct((num_rows, num_splits, num_heads), jnp.float32),
        ],
        num_warps=num_warps,
        num_stages=num_stages,
        interpret=interpret,
    )(triton_call.layer_operand(layer), q, kv, block_tables, context_lens, slopes)
    return out[:, 0] if num_splits == 1 else splits.merge(out, log_total).astype(q.dtype)


def own_tuning(dtype: jnp.dtype) -> DecodeTuning:
    """What this kernel takes where nobody says otherwise, by the dtype of its products; splits go by the call."""
    # Float32 tiles of 64 tokens and 128 elements spill registers.
    return DecodeTuning(block_tokens=32 if dtype == jnp.float32 else 64, num_warps=4, num_stages=5)


def _sizes(tuning: DecodeTuning | None, q: Array, block_tables: Array, kv: KVPages) -> tuple[int, int, int, int]:
    tuning, own = tuning or DecodeTuning(), own_tuning(key_dtype(q.dtype, kv.k.dtype))
    block = tuning.block_tokens or own.block_tokens
    longest = block_tables.shape[1] * kv.page_size
    num_splits = tuning.splits or splits.default_splits(q.shape[0] * kv.num_kv_heads, longest)
    num_warps, num_stages = tuning.num_warps or own.num_warps, tuning.num_stages or own.num_stages
    assert block and num_warps and num_stages
    triton_call.check_sizes(block_tokens=block, splits=num_splits, num_warps=num_warps)
    if block < triton_call.SMALLEST_DOT:
        raise ValueError(f"block_tokens={block} must be at least {triton_call.SMALLEST_DOT}, the smallest Triton dot")
    return block, num_splits, num_warps, num_stages


def _attend_split(
    layer_ref: Any,
    q_ref: Any,
    kv_ref: Any,
    table_ref: Any,
    length_ref: Any,
    slope_ref: Any,
    out_ref: Any,
    log_total_ref: Any,
    *,
    rule: ScoreRule,
    page_size: int,
    head_dim: int,
    group: int,
    num_splits: int,
    block: int,
    has_slopes: bool,
) -> None:
    row, kv_head, split = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    layer = layer_ref[0]
    length = plgpu.load(length_ref.at[row])
    first, end = _range_of_split(length, split, num_splits, block, rule)
    member = jnp.arange(triton_call.power_of_two(group, triton_call.SMALLEST_DOT))
    # Lanes past the group are masked, not clamped: in interpret mode a masked store writes the old value back.
    head = kv_head * group + member
    dim = jnp.arange(triton_call.power_of_two(head_dim, triton_call.SMALLEST_DOT))
    live = (member < group)[:, None] & (dim < head_dim)[None, :]
    query = plgpu.load(q_ref.at[row, head[:, None], dim[None, :]], mask=live, other=0.0)
    slope = plgpu.load(slope_ref.at[head], mask=member < group, other=0.0)[:, None] if has_slopes else None
    multiplying, weighing = key_dtype(q_ref.dtype, kv_ref.k.dtype), value_dtype(q_ref.dtype, kv_ref.v.dtype)

    def body(i: Array, state: SoftmaxState) -> SoftmaxState:
        token = first + i * block + jnp.arange(block)
        inside = token < end
        page = plgpu.load(table_ref.at[row, token // page_size], mask=inside, other=0)
        slot = (layer, page[:, None], (token % page_size)[:, None], kv_head, dim[None, :])
        k_scale, v_scale = triton_call.load_scales(kv_ref, (layer, page, token % page_size, kv_head), inside)
        loaded = inside[:, None] & (dim < head_dim)[None, :]
        keys = triton_call.load_as(multiplying, kv_ref.k, slot, loaded)
        product = plgpu.dot(query.astype(multiplying), keys.T, precision=precision_of(multiplying))
        score = rule.score(scaled(product, k_scale), (length - 1 - token)[None, :], slope)

        def weigh(weight: Array) -> Array:
            values = triton_call.load_as(weighing, kv_ref.v, slot, loaded)
            return plgpu.dot(scaled(weight, v_scale).astype(weighing), values, precision=precision_of(weighing))

        return online_softmax.absorb(state, score, inside[None, :], weigh)

    start = online_softmax.start(member.shape, dim.shape[0])
    state = lax.fori_loop(0, jnp.maximum(pl.cdiv(end - first, block), 0), body, start)
    out = online_softmax.finish(state).astype(out_ref.dtype)
    plgpu.store(out_ref.at[row, split, head[:, None], dim[None, :]], out, mask=live)
    plgpu.store(log_total_ref.at[row, split, head], online_softmax.log_total(state), mask=member < group)


def _range_of_split(length: Array, split: Array, num_splits: int, block: int, rule: ScoreRule) -> tuple[Array, Array]:
    """The tokens of one split, in whole blocks, so that the splits of a row share its true length evenly."""
    visible_from = rule.first_visible(jnp.maximum(length - 1, 0))
    blocks = pl.cdiv(pl.cdiv(length - visible_from, block), num_splits)
    first = visible_from + split * blocks * block
    return first, jnp.minimum(first + blocks * block, length)
