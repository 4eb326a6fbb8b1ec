"""Log probabilities of chosen tokens and of the likeliest ones.

Lives here: logprob, rank and top list of a token under raw logits.
Promises: finite numbers for finite logits; rank r is the token's place in a top list that is long enough.
Must not know: sampling rules and parameters, which may have masked what is reported here.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jpaged.runtime.sampling.ranking import leaders, row_sums


class TokenLogprobs(NamedTuple):
    """What is known of one token a row, and the `N` likeliest tokens of the row, likeliest first."""

    logprobs: Float[Array, " Q"]
    ranks: Int[Array, " Q"]  # 1 is the likeliest; of equally likely tokens the lowest id comes first
    top_ids: Int[Array, "Q N"]
    top_logprobs: Float[Array, "Q N"]


def token_logprobs(
    logits: Float[Array, "Q V"],
    token_ids: Int[Array, " Q"],
    wanted: Int[Array, " Q"],
    *,
    vocab_size: int,
    max_logprobs: int,
) -> TokenLogprobs:
    """Logprob, rank and `wanted` top entries a row; all 0 where `wanted` is negative, and in entries past `wanted`.

    `V` is a multiple of LANES; columns of `vocab_size` and more are -inf. Nothing is computed that no row wants.
    """
    nothing = TokenLogprobs(
        jnp.zeros(token_ids.shape, jnp.float32),
        jnp.zeros(token_ids.shape, jnp.int32),
        jnp.zeros((*token_ids.shape, max_logprobs), jnp.int32),
        jnp.zeros((*token_ids.shape, max_logprobs), jnp.float32),
    )

    def compute() -> TokenLogprobs:
        normalisers = _log_normalisers(logits)
        logprobs, ranks = _logprob_and_rank(logits, normalisers, token_ids)

        def top() -> tuple[Array, Array]:
            return _top_lists(logits, normalisers, wanted, min(max_logprobs, vocab_size), max_logprobs)

        lists = lax.cond(jnp.any(wanted > 0), top, lambda: (nothing.top_ids, nothing.top_logprobs))
        return TokenLogprobs(jnp.where(wanted >= 0, logprobs, 0), jnp.where(wanted >= 0, ranks, 0), *lists)

    return lax.cond(jnp.any(wanted >= 0), compute, lambda: nothing)


def _log_normalisers(logits: Float[Array, "Q V"]) -> Float[Array, " Q"]:
    """The log of each row's sum of exponentials: a logit minus this is a logprob."""
    best = jnp.max(logits, axis=-1)
    return best + jnp.log(row_sums(jnp.exp(logits - best[:, None])))


def _logprob_and_rank(
    logits: Float[Array, "Q V"], normalisers: Float[Array, " Q"], token_ids: Int[Array, " Q"]
) -> tuple[Float[Array, " Q"], Int[Array, " Q"]]:
    chosen = jnp.take_along_axis(logits, token_ids[:, None], axis=-1)
    index = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    ahead = (logits > chosen) | ((logits == chosen) & (index < token_ids[:, None]))
    return chosen[:, 0] - normalisers, 1 + jnp.sum(ahead.astype(jnp.int32), axis=-1)


def _top_lists(
    logits: Float[Array, "Q V"], normalisers: Float[Array, " Q"], wanted: Int[Array, " Q"], count: int, width: int
) -> tuple[Int[Array, "Q N"], Float[Array, "Q N"]]:
    values, ids = leaders(logits, count)
    listed = jnp.arange(count) < wanted[:, None]
    padding = ((0, 0), (0, width - count))
    logprobs = jnp.where(listed, values - normalisers[:, None], 0)
    return jnp.pad(jnp.where(listed, ids, 0), padding), jnp.pad(logprobs, padding)
