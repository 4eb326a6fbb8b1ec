"""Decode attention for NVIDIA GPUs: one program per row, kv head and split, through Pallas' Triton backend.

Splits follow each row's true length, and are merged in float32.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from pallas_kernels import online_softmax, triton_attention, triton_call
from pallas_kernels.scores import AttentionCall, ScoreRule
from pallas_kernels.triton_attention import SMALLEST_DOT
from pallas_kernels.tuning import DecodeTuning, default_splits

SUPPORT = triton_attention.supported("block_tokens", "splits", "num_warps", "num_stages")


def paged_attention(call: AttentionCall, tuning: DecodeTuning, *, interpret: bool = False) -> Float[Array, "B N H"]:
    """Attention output of each row's newest token."""
    operands = triton_attention.operands(call)
    num_rows, num_heads, head_dim = call.q.shape
    block, num_splits, num_warps = _sizes(call, tuning)
    out, log_total = triton_call.call(
        partial(_attend_split, num_splits=num_splits, block=block),
        name="paged_attention",
        grid=(num_rows, call.kv.num_kv_heads, num_splits),
        out_shape=[
            jax.ShapeDtypeStruct(
                (num_rows, num_splits, num_heads, head_dim), call.q.dtype if num_splits == 1 else jnp.float32
            ),
            jax.ShapeDtypeStruct((num_rows, num_splits, num_heads), jnp.float32),
        ],
        num_warps=num_warps,
        num_stages=tuning.num_stages or 5,
        interpret=interpret,
    )(operands)
    return out[:, 0] if num_splits == 1 else online_softmax.merge(out, log_total).astype(call.q.dtype)


def _sizes(call: AttentionCall, tuning: DecodeTuning) -> tuple[int, int, int]:
    # Float32 tiles of 64 tokens and 128 elements spill registers.
    block = tuning.block_tokens or (32 if call.key_dtype == jnp.float32 else 64)
    num_programs, longest = call.q.shape[0] * call.kv.num_kv_heads, call.block_tables.shape[1] * call.kv.page_size
    splits, num_warps = tuning.splits or default_splits(num_programs, longest), tuning.num_warps or 4
    triton_call.check_sizes(block_tokens=block, splits=splits, num_warps=num_warps)
    if block < SMALLEST_DOT:
        raise ValueError(f"block_tokens={block} must be at least {SMALLEST_DOT}, the smallest Triton dot")
    return block, splits, num_warps


def _attend_split(refs: Any, out_ref: Any, log_total_ref: Any, *, num_splits: int, block: int) -> None:
    row, kv_head, split = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    group, head_dim = refs.group, refs.kv.head_dim
    length = plgpu.load(refs.context_lens.at[row])
    first, end = _range_of_split(length, split, num_splits, block, refs.rule)
    member = jnp.arange(triton_call.power_of_two(group, SMALLEST_DOT))
    # Members past the group are masked, not clamped: in interpret mode a masked store writes the old value back.
    head = kv_head * group + member
    dim = triton_attention.padded_head(head_dim)
    live = (member < group)[:, None] & (dim < head_dim)[None, :]
    query = plgpu.load(refs.q.at[row, head[:, None], dim[None, :]], mask=live, other=0.0)
    slope = triton_attention.load_slopes(refs, head, member < group)
    # The range begins where the window does: the query sees all of it.
    place_keys = lambda token, inside: ((length - 1 - token)[None, :], inside[None, :])  # noqa: E731
    state = triton_attention.attend_tokens(refs, query, slope, row, kv_head, first, end, block, place_keys)
    out = online_softmax.finish(state).astype(out_ref.dtype)
    plgpu.store(out_ref.at[row, split, head[:, None], dim[None, :]], out, mask=live)
    plgpu.store(log_total_ref.at[row, split, head], online_softmax.log_total(state), mask=member < group)


def _range_of_split(length: Array, split: Array, num_splits: int, block: int, rule: ScoreRule) -> tuple[Array, Array]:
    """The tokens of one split, in whole blocks, so that the splits of a row share its true length evenly."""
    visible_from = rule.first_visible(jnp.maximum(length - 1, 0))
    blocks = pl.cdiv(pl.cdiv(length - visible_from, block), num_splits)
    first = visible_from + split * blocks * block
    return first, jnp.minimum(first + blocks * block, length)
