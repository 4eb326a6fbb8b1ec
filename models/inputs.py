"""The padded arrays that one step of a model reads: all that a model is told about the batch.

Shapes come out of a short list of buckets; a padding entry is marked as such in every array.
"""

from typing import NamedTuple

from jaxtyping import Array, Int


class StepInputs(NamedTuple):
    """One step's tokens, packed row after row, and where each row's pages are.

    `B` rows, `T` packed tokens, `M` table width, `Q` logits rows. All arrays are int32.

    A padding token has position 0 and a slot of `P * S` or more (every write drops it). A padding row has
    context length 0, a table of null pages and an empty query range. A padding entry of `sample_rows` is 0.

    With `query_starts` None the step is a pure decode step: `T == B` and packed token `i` is the one query of
    row `i`. Otherwise the queries of row `i` are the packed tokens `query_starts[i]:query_starts[i + 1]`, and
    they are the last ones of the `context_lens[i]` tokens that the row has in the pool after this step's write.
    """

    token_ids: Int[Array, " T"]
    positions: Int[Array, " T"]
    slots: Int[Array, " T"]
    block_tables: Int[Array, "B M"]
    context_lens: Int[Array, " B"]
    query_starts: Int[Array, " B+1"] | None
    sample_rows: Int[Array, " Q"]
