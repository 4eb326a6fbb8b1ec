"""Log probabilities of chosen tokens and of the likeliest ones.

Lives here: logprob, rank and top list of a token under raw logits.
Promises: finite numbers for finite logits; rank r is the token's place in a top list that is long enough.
Must not know: sampling rules and parameters, which may have masked what is reported here.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jpaged.runtime.token_draw import LANES


class TokenLogprobs(NamedTuple):
    """What is known of one token a row, and the `N` likeliest tokens of the row, likeliest first."""

    logprobs: Float[Array, " Q"]
    ranks: Int[Array, " Q"]  # 1 is the likeliest; of equally likely tokens the lowest id comes first
    top_ids: Int[Array, "Q N"]
    top_logprobs: Float[Array, "Q N"]


def log_normalisers(logits: Float[Array, "Q V"]) -> Float[Array, " Q"]:
    """The log of each row's sum of exponentials: a logit minus this is a logprob."""
    best = jnp.max(logits, axis=-1)
    weights = jnp.exp(logits - best[:, None]).reshape(logits.shape[0], -1, LANES)
    return best + jnp.log(jnp.sum(jnp.sum(weights, axis=-1), axis=-1))


def logprob_and_rank(
    logits: Float[Array, "Q V"], normalisers: Float[Array, " Q"], token_ids: Int[Array, " Q"]
) -> tuple[Float[Array, " Q"], Int[Array, " Q"]]:
    """The logprob of one token a row and its rank, 1 for the likeliest."""
    chosen = jnp.take_along_axis(logits, token_ids[:, None], axis=-1)
    index = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    ahead = (logits > chosen) | ((logits == chosen) & (index < token_ids[:, None]))
    return chosen[:, 0] - normalisers, 1 + jnp.sum(ahead.astype(jnp.int32), axis=-1)


def top_logprobs(
    logits: Float[Array, "Q V"], normalisers: Float[Array, " Q"], count: int
) -> tuple[Int[Array, "Q N"], Float[Array, "Q N"]]:
    """The ids and logprobs of the `count` likeliest tokens, equals by lowest id. Needs `count <= V`.

    Each of them lies in one of the `count` blocks with the largest maxima, so the rest is never ranked. The blocks
    are put back in order because `top_k` breaks ties by position.
    """
    blocks = logits.reshape(logits.shape[0], -1, LANES)
    _, chosen = lax.top_k(jnp.max(blocks, axis=-1), min(count, blocks.shape[1]))
    chosen = jnp.sort(chosen, axis=-1)
    candidates = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(logits.shape[0], -1)
    values, places = lax.top_k(candidates, count)
    ids = jnp.take_along_axis(chosen, places // LANES, axis=1) * LANES + places % LANES
    return ids, values - normalisers[:, None]
