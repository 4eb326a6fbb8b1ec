"""The first few of a row's tokens, in order, without a sort of the vocabulary.

Lives here: the block width of every reduction over the vocabulary, and `leaders`.
Promises: exact; larger values first, equal values by lowest index.
Must not know: what the values mean.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

LANES = 128
"""Reductions over the vocabulary go in two levels, blocks of this many tokens first: fewer roundings, no long scan."""


def leaders(values: Float[Array, "Q V"], count: int) -> tuple[Float[Array, "Q N"], Int[Array, "Q N"]]:
    """The `count` largest values of each row and their indices. `V` is a multiple of LANES and at least `count`.

    Each of them lies in one of the `count` blocks with the largest maxima, so no other block is ranked. The chosen
    blocks are put back in order because `top_k` breaks ties by position.
    """
    blocks = values.reshape(values.shape[0], -1, LANES)
    _, chosen = lax.top_k(jnp.max(blocks, axis=-1), min(count, blocks.shape[1]))
    chosen = jnp.sort(chosen, axis=-1)
    candidates = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(values.shape[0], -1)
    largest, places = lax.top_k(candidates, count)
    return largest, jnp.take_along_axis(chosen, places // LANES, axis=1) * LANES + places % LANES


def block_sums(weights: Float[Array, "Q V"]) -> Float[Array, "Q X"]:
    """The sum of each block of LANES."""
    return jnp.sum(weights.reshape(weights.shape[0], -1, LANES), axis=-1)


def row_sums(weights: Float[Array, "Q V"]) -> Float[Array, " Q"]:
    """The sum of each row, block by block."""
    return jnp.sum(block_sums(weights), axis=-1)
