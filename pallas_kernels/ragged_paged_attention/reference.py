"""Ragged attention, written to be read.

Lives here: the definition of what every other implementation must return.
Promises: each packed query is a decode row whose context ends at its own position.
Must not know: speed.
"""

from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels.kv_pages import KVPages
from pallas_kernels.paged_attention import reference as decode
from pallas_kernels.ragged_paged_attention.rows import place_queries
from pallas_kernels.ragged_paged_attention.tuned import RaggedTuning
from pallas_kernels.scores import ScoreRule
from pallas_kernels.support import Support

SUPPORT = Support(hardware="any", proof="tested against a float64 oracle")


def ragged_paged_attention(
    q: Float[Array, "T N H"],
    kv: KVPages,
    block_tables: Int[Array, "B M"],
    context_lens: Int[Array, " B"],
    query_starts: Int[Array, " B+1"],
    layer: ArrayLike,
    rule: ScoreRule,
    alibi_slopes: Float[Array, " N"] | None,
    *,
    tuning: RaggedTuning | None = None,
) -> Float[Array, "T N H"]:
    """Attention output of every packed query, query after query."""
    SUPPORT.check("reference", kv, q, rule, alibi_slopes, tuning)
    row, position = place_queries(query_starts, context_lens, q.shape[0])
    return decode.paged_attention(q, kv, block_tables[row], position + 1, layer, rule, alibi_slopes)
