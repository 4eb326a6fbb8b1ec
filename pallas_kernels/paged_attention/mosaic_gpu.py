"""Decode attention for Hopper GPUs, through Pallas' Mosaic GPU backend: one program per row, kv head and split.

Softmax and the merge of splits are float32; what the kernel cannot do is refused with the reason.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels import hopper_attention as hopper
from pallas_kernels import online_softmax
from pallas_kernels.mosaic_walk import Walk, split_of_row
from pallas_kernels.scores import AttentionCall
from pallas_kernels.tuning import DecodeTuning, default_splits

SUPPORT = hopper.supported("block_tokens", "splits", "num_stages")


def paged_attention(call: AttentionCall, tuning: DecodeTuning, *, interpret: bool = False) -> Float[Array, "B N H"]:
    """Attention output of each row's newest token."""
    hopper.check_device(interpret)
    (num_rows, _, head_dim), kv, group = call.q.shape, call.kv, call.group
    block, stages = hopper.checked_sizes(tuning.block_tokens, tuning.num_stages, head_dim)
    splits = tuning.splits or default_splits(num_rows * kv.num_kv_heads, call.block_tables.shape[1] * kv.page_size)
    walk = Walk(call.rule, kv.page_size, kv.num_slots, block, splits)
    query = call.q.reshape(num_rows, kv.num_kv_heads, group, head_dim)
    query = jnp.pad(query, ((0, 0), (0, 0), (0, -group % 8), (0, 0)))
    shape = (num_rows, splits, *query.shape[1:])
    attend = hopper.kernel(
        partial(_program, walk=walk),
        query,
        walk,
        stages,
        out_type=[jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape[:-1], jnp.float32)],
        grid={"row": num_rows, "kv_head": kv.num_kv_heads, "split": splits},
        interpret=interpret,
    )
    numbers = (jnp.reshape(jnp.asarray(call.layer), (1,)), call.block_tables, call.context_lens)
    tokens = kv.by_token()
    out, log_total = attend(*(x.astype(jnp.int32) for x in numbers), query, tokens.k, tokens.v)
    out = online_softmax.merge(out[:, :, :, :group], log_total[:, :, :, :group])
    return out.reshape(call.q.shape).astype(call.q.dtype)


def _program(
    layer_ref: Any, table_ref: Any, length_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any,
    log_total_ref: Any, *scratch: Any, walk: Walk,
) -> None:  # fmt: skip
    row, kv_head, split = lax.axis_index("row"), lax.axis_index("kv_head"), lax.axis_index("split")
    work = split_of_row(walk, length_ref[row], split)
    local = hopper.Scratch(*scratch)

    def fetch() -> None:
        table = lambda column: table_ref[row, column]  # noqa: E731
        hopper.fetch_blocks(layer_ref[0], table, kv_head, k_ref, v_ref, local, work, walk)

    hopper.run_warpgroups(
        local,
        work,
        walk,
        fetch=fetch,
        distance_of=lambda token: work.length - 1 - token,
        q_ref=q_ref.at[row, kv_head],
        outputs=[
            (local.out, out_ref.at[row, split, kv_head]),
            (local.log_total, log_total_ref.at[row, split, kv_head]),
        ],
    )
