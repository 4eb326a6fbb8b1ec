"""Reductions over a vocabulary: sums, the largest few, and where a running sum passes a target.

Exact, without a sort of the vocabulary or a scan of a whole row; ties go to the lowest index. What the values mean is
the caller's.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

BLOCK = 128
"""Reductions over the vocabulary go in two levels, blocks of this many tokens first: fewer roundings, no long scan."""


def largest(values: Float[Array, "Q V"], count: int) -> tuple[Float[Array, "Q N"], Int[Array, "Q N"]]:
    """The `count` largest values of each row and their indices. `V` is a multiple of BLOCK and at least `count`.

    Each of them lies in one of the `count` blocks with the largest maxima, so no other block is ranked. The chosen
    blocks are put back in order because `top_k` breaks ties by position.
    """
    blocks = values.reshape(values.shape[0], -1, BLOCK)
    _, chosen = lax.top_k(jnp.max(blocks, axis=-1), min(count, blocks.shape[1]))
    chosen = jnp.sort(chosen, axis=-1)
    candidates = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(values.shape[0], -1)
    largest, places = lax.top_k(candidates, count)
    return largest, jnp.take_along_axis(chosen, places // BLOCK, axis=1) * BLOCK + places % BLOCK


def block_sums(weights: Float[Array, "Q V"]) -> Float[Array, "Q X"]:
    """The sum of each block of BLOCK."""
    return jnp.sum(weights.reshape(weights.shape[0], -1, BLOCK), axis=-1)


def row_sums(weights: Float[Array, "Q V"]) -> Float[Array, " Q"]:
    """The sum of each row, block by block."""
    return jnp.sum(block_sums(weights), axis=-1)


def index_above(weights: Float[Array, "Q V"], target: Float[Array, " Q"]) -> Int[Array, " Q"]:
    """The first index at which the running sum of a row's weights exceeds the target. `V` is a multiple of BLOCK.

    Where rounding keeps the whole sum at or below the target it is the last index that has weight; 0 in a row of none.
    """
    sums = block_sums(weights)
    running = jnp.cumsum(sums, axis=-1)
    block = _first_above(running, sums, target)
    blocks = weights.reshape(weights.shape[0], -1, BLOCK)
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    place = _first_above(jnp.cumsum(inside, axis=-1), inside, target - pick(running - sums, block))
    return block * BLOCK + place


def pick(values: Shaped[Array, "Q X"], column: Int[Array, " Q"]) -> Shaped[Array, " Q"]:
    """One value of each row."""
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
