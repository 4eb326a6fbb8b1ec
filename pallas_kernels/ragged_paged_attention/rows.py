"""Which row owns a packed query, and at which position it stands.

Lives here: the map from packed queries to rows.
Promises: comparisons only, no search: a search lowers to a loop on the device.
Must not know: pages, scores.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int


class QueryPlaces(NamedTuple):
    """For each packed query its row and its position in that row, which is -1 for a query of nobody."""

    row: Int[Array, " T"]
    position: Int[Array, " T"]


def place_queries(
    query_starts: Int[Array, " B+1"], context_lens: Int[Array, " B"], num_queries: int
) -> QueryPlaces:
    """The row and position of each of `num_queries` packed queries."""
    token = jnp.arange(num_queries, dtype=jnp.int32)
    # Rows without queries end where they start, so counting the ends at or before a token skips them.
    row = (query_starts[None, 1:] <= token[:, None]).sum(axis=1, dtype=jnp.int32)
    owned = row < context_lens.shape[0]
    row = jnp.where(owned, row, 0)
    position = context_lens[row] - query_starts[row + 1] + token
    return QueryPlaces(row, jnp.where(owned, position, -1).astype(jnp.int32))
