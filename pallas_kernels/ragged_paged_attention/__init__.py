"""Attention of packed queries: prefill chunks and decode rows in one call.

Lives here: the public function, its checks, and (beside it) its implementations.
Promises: empty rows and query rows that belong to nobody give zeros; attention is causal inside a chunk.
Must not know: models, schedulers.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels import dispatch
from pallas_kernels.kv_pages import KVPages
from pallas_kernels.ragged_paged_attention.tuned import RaggedTuning, tuning_for
from pallas_kernels.scores import check_tables, checked_rule

__all__ = ["RaggedTuning", "ragged_paged_attention"]


def ragged_paged_attention(
    q: Float[Array, "T N H"],
    kv: KVPages,
    block_tables: Int[Array, "B M"],
    context_lens: Int[Array, " B"],
    query_starts: Int[Array, " B+1"],
    *,
    layer: ArrayLike = 0,
    scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Float[Array, " N"] | None = None,
    implementation: str | None = None,
    interpret: bool = False,
    tuning: RaggedTuning | None = None,
) -> Float[Array, "T N H"]:
    """Attention output of every packed query, `[T, N, H]` in q's dtype; rows past `query_starts[-1]` give zeros.

    The queries of row b are `q[query_starts[b]:query_starts[b + 1]]`: the newest tokens of its `context_lens[b]`,
    whose keys are already in the pool. Each sees the keys up to its own position. `query_starts` starts at 0 and
    never falls; a row may have no query, one (a decode row) or many (a prefill chunk).
    All other arguments mean what they mean in `paged_attention`.

    Raises ValueError for shapes that do not fit together, NotImplementedError for what an implementation lacks.
    Source: PagedAttention, section 4.1 (Kwon et al., SOSP 2023), with prefill cut into chunks.
    """
    rule = checked_rule(q, kv, layer, scale=scale, window=window, soft_cap=soft_cap, alibi_slopes=alibi_slopes)
    check_tables(block_tables, context_lens)
    if query_starts.shape != (block_tables.shape[0] + 1,) or not jnp.issubdtype(query_starts.dtype, jnp.integer):
        raise ValueError(
            f"query_starts must be integers, [B + 1] = [{block_tables.shape[0] + 1}]; "
            f"got {query_starts.dtype}{list(query_starts.shape)}"
        )
    attend = dispatch.load("ragged_paged_attention", implementation, interpret)
    if tuning is None and not interpret:
        tuning = tuning_for(dispatch.resolve("ragged_paged_attention", implementation), q, kv)
    pool = kv.with_layers()
    return attend(q, pool, block_tables, context_lens, query_starts, layer, rule, alibi_slopes, tuning=tuning)
