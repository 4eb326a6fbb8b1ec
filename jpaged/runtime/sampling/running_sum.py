"""Where a row's running sum passes a target, without a scan of the whole row.

Lives here: the inverse of a cumulative sum, a block first and then a place in it.
Promises: never an index of weight 0 while the row has another.
Must not know: what the weights mean.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from jpaged.runtime.sampling.ranking import LANES, block_sums


def index_above(weights: Float[Array, "Q V"], target: Float[Array, " Q"]) -> Int[Array, " Q"]:
    """The first index at which the running sum of a row's weights exceeds the target. `V` is a multiple of LANES.

    Where rounding keeps the whole sum at or below the target it is the last index that has weight; 0 in a row of none.
    """
    sums = block_sums(weights)
    running = jnp.cumsum(sums, axis=-1)
    block = _first_above(running, sums, target)
    blocks = weights.reshape(weights.shape[0], -1, LANES)
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    lane = _first_above(jnp.cumsum(inside, axis=-1), inside, target - pick(running - sums, block))
    return block * LANES + lane


def pick(values: Shaped[Array, "Q X"], column: Int[Array, " Q"]) -> Shaped[Array, " Q"]:
    """One value a row."""
    return jnp.take_along_axis(values, column[:, None], axis=1)[:, 0]


def _first_above(
    running: Float[Array, "Q X"], weights: Float[Array, "Q X"], target: Float[Array, " Q"]
) -> Int[Array, " Q"]:
    # The weight is tested beside the sum: a parallel scan need not be monotone in its last bit.
    positive = weights > 0
    columns = lax.broadcasted_iota(jnp.int32, weights.shape, 1)
    width = weights.shape[1]
    first = jnp.min(jnp.where(positive & (running > target[:, None]), columns, width), axis=-1)
    last = jnp.max(jnp.where(positive, columns, 0), axis=-1)
    return jnp.where(first < width, first, last)
