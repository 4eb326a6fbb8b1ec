"""Attention of packed queries: prefill chunks and decode rows in one call.

Empty rows and queries that belong to nobody give zeros; attention is causal inside a chunk.
"""

from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels.attend import attend, checked_call
from pallas_kernels.kv_pages import KVPages
from pallas_kernels.tuning import RaggedTuning

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
    call = checked_call(
        q, kv, block_tables, context_lens, query_starts, layer, scale=scale, window=window, soft_cap=soft_cap,
        alibi_slopes=alibi_slopes,
    )  # fmt: skip
    return attend("ragged_paged_attention", call, implementation, interpret, tuning)
