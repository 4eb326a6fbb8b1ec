"""An attention call from its arguments to the implementation that runs.

Whatever does not fit together, and whatever the implementation lacks, is refused here.
"""

from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels import dispatch
from pallas_kernels.kv_pages import KVPages, check_pool
from pallas_kernels.scores import AttentionCall, ScoreRule
from pallas_kernels.support import support_of
from pallas_kernels.tuning import RECORDS, tuning_for


def attend(
    operation: str, call: AttentionCall, implementation: str | None, interpret: bool, tuning: Any
) -> Float[Array, "T N H"]:
    """What `implementation` (None: the platform's default) returns. Raises NotImplementedError for what it lacks.

    `tuning` None: what the package's table says, else the implementation's own rules.
    """
    function = dispatch.load(operation, implementation, interpret)
    name = dispatch.resolve(operation, implementation)
    support = support_of(operation, name)
    assert support is not None
    if tuning is None and not interpret:
        tuning = tuning_for(operation, name, call)
    support.check(name, call, tuning)
    return function(call, tuning or RECORDS[operation]())


def checked_call(
    q: Float[Array, "T N H"],
    kv: KVPages,
    block_tables: Int[Array, "B M"],
    context_lens: Int[Array, " B"],
    query_starts: Int[Array, " B+1"] | None,
    layer: ArrayLike,
    *,
    scale: float | None,
    window: int | None,
    soft_cap: float | None,
    alibi_slopes: Float[Array, " N"] | None,
) -> AttentionCall:
    """The call, or ValueError with what does not fit."""
    check_pool(kv, layer)
    if q.ndim != 3 or q.shape[-1] != kv.head_dim:
        raise ValueError(f"q must be [rows, N, H] with H = {kv.head_dim} as in the pool; got {list(q.shape)}")
    if q.shape[1] % kv.num_kv_heads:
        raise ValueError(f"{q.shape[1]} query heads do not divide into groups of the pool's {kv.num_kv_heads} kv heads")
    if window is not None and window < 1:
        raise ValueError(f"window={window} must be at least 1 (it counts the token itself), or None")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap={soft_cap} must be positive, or None")
    if alibi_slopes is not None and alibi_slopes.shape != (q.shape[1],):
        raise ValueError(f"alibi_slopes must have one slope per query head, [{q.shape[1]}]; got {alibi_slopes.shape}")
    _check_rows(q, block_tables, context_lens, query_starts)
    rule = ScoreRule(q.shape[-1] ** -0.5 if scale is None else scale, window, soft_cap)
    return AttentionCall(q, kv.with_layers(), block_tables, context_lens, query_starts, layer, rule, alibi_slopes)


def _check_rows(q: Array, block_tables: Array, context_lens: Array, query_starts: Array | None) -> None:
    if block_tables.ndim != 2 or context_lens.shape != block_tables.shape[:1]:
        raise ValueError(
            f"block_tables [B, M] and context_lens [B] must agree; got {block_tables.shape}, {context_lens.shape}"
        )
    if not all(jnp.issubdtype(x.dtype, jnp.integer) for x in (block_tables, context_lens)):
        raise ValueError(
            f"block_tables and context_lens must be integers; got {block_tables.dtype}, {context_lens.dtype}"
        )
    num_rows = block_tables.shape[0]
    if query_starts is None:
        if q.shape[0] != num_rows:
            raise ValueError(f"q has {q.shape[0]} rows and block_tables has {num_rows}")
    elif query_starts.shape != (num_rows + 1,) or not jnp.issubdtype(query_starts.dtype, jnp.integer):
        got = f"{query_starts.dtype}{list(query_starts.shape)}"
        raise ValueError(f"query_starts must be integers, [B + 1] = [{num_rows + 1}]; got {got}")
