"""Which row owns a packed query, and at which position it stands.

The maps from packed queries, and from blocks of queries, to rows are comparisons only, no search: a search lowers to a
loop on the device.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int


class QueryPlaces(NamedTuple):
    """For each packed query its row and its position in that row, which is -1 for a query of nobody."""

    row: Int[Array, " T"]
    position: Int[Array, " T"]


class QueryBlocks(NamedTuple):
    """For each block of queries its row and its first query, counted in that row."""

    row: Int[Array, " X"]
    first_query: Int[Array, " X"]


def place_queries(query_starts: Int[Array, " B+1"], context_lens: Int[Array, " B"], num_queries: int) -> QueryPlaces:
    """The row and position of each of `num_queries` packed queries."""
    token = jnp.arange(num_queries, dtype=jnp.int32)
    # Rows without queries end where they start, so counting the ends at or before a token skips them.
    row = (query_starts[None, 1:] <= token[:, None]).sum(axis=1, dtype=jnp.int32)
    owned = row < context_lens.shape[0]
    row = jnp.where(owned, row, 0)
    position = context_lens[row] - query_starts[row + 1] + token
    return QueryPlaces(row, jnp.where(owned, position, -1).astype(jnp.int32))


def place_blocks(query_starts: Int[Array, " B+1"], num_queries: int, block: int) -> QueryBlocks:
    """The row and first query of every block of `block` queries; as many blocks as `num_queries` may ever need.

    Blocks come in packed order. One that is not needed belongs to the last row and starts past its queries.
    """
    num_rows = query_starts.shape[0] - 1
    counts = query_starts[1:] - query_starts[:-1]
    until = jnp.cumsum(-(-counts // block), dtype=jnp.int32)
    index = jnp.arange(num_queries // block + num_rows, dtype=jnp.int32)
    row = jnp.minimum((until[None, :] <= index[:, None]).sum(axis=1, dtype=jnp.int32), num_rows - 1)
    before = until[row] - -(-counts[row] // block)
    return QueryBlocks(row, ((index - before) * block).astype(jnp.int32))
