"""Ragged attention, written to be read.

This defines what every other implementation must return: each packed query is a decode row whose context ends at its
own position.
"""

from jaxtyping import Array, Float

from pallas_kernels.paged_attention import reference as decode
from pallas_kernels.ragged_paged_attention.rows import place_queries
from pallas_kernels.scores import AttentionCall
from pallas_kernels.support import Support
from pallas_kernels.tuning import RaggedTuning

SUPPORT = Support(hardware="any", proof="tested against a float64 oracle")


def ragged_paged_attention(call: AttentionCall, tuning: RaggedTuning | None = None) -> Float[Array, "T N H"]:
    """Attention output of every packed query, query after query."""
    assert call.query_starts is not None
    row, position = place_queries(call.query_starts, call.context_lens, call.q.shape[0])
    rows = call._replace(block_tables=call.block_tables[row], context_lens=position + 1, query_starts=None)
    return decode.paged_attention(rows)
