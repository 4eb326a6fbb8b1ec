"""Ragged attention in plain XLA: the path for the CPU.

Lives here: (being measured) each packed query as a decode row.
Promises: cost follows the true lengths.
Must not know: how wide a table is beyond its shape.
"""

from pallas_kernels.paged_attention import xla as decode
from pallas_kernels.ragged_paged_attention.rows import place_queries


def ragged_paged_attention(
    q, kv, block_tables, context_lens, query_starts, layer, rule, alibi_slopes, *, tuning=None
):
    """Attention output of every packed query."""
    row, position = place_queries(query_starts, context_lens, q.shape[0])
    return decode.paged_attention(q, kv, block_tables[row], position + 1, layer, rule, alibi_slopes)
