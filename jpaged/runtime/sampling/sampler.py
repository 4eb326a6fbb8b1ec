"""The sampler: from a step's logits to token ids and their log probabilities.

Pure functions, traced inside the compiled step. A row's result depends on its own logits, parameters and history alone;
one program serves every mix of parameters, and each costly part runs only in a step in which some row asks for it.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jpaged.runtime.sampling.inputs import SamplingInputs, is_greedy, uniforms
from jpaged.runtime.sampling.lane_state import LaneState
from jpaged.runtime.sampling.rules import apply_rules
from jpaged.runtime.sampling.truncation import all_tokens, kept_weights, truncate
from jpaged.runtime.sampling.vocabulary import BLOCK, index_above, largest, row_sums


class LogprobTable(NamedTuple):
    """What is known of one token per row, and the `N` likeliest tokens of the row, likeliest first."""

    logprobs: Float[Array, " Q"]
    ranks: Int[Array, " Q"]  # 1 is the likeliest; of equally likely tokens the lowest id comes first
    top_ids: Int[Array, "Q N"]
    top_logprobs: Float[Array, "Q N"]


class SampleOutputs(NamedTuple):
    """One sampled token per row, and its logprobs under the raw logits; `N` is max_logprobs.

    Where a row asked for no logprobs, and in the top lists past the number it asked for, all is 0. A rank that was
    asked for is at least 1.
    """

    token_ids: Int[Array, " Q"]
    logprobs: Float[Array, " Q"]
    ranks: Int[Array, " Q"]
    top_ids: Int[Array, "Q N"]
    top_logprobs: Float[Array, "Q N"]


def sample(
    logits: Float[Array, "Q V"], inputs: SamplingInputs, state: LaneState, *, vocab_size: int, max_logprobs: int
) -> SampleOutputs:
    """One token per row, as vLLM V1 chooses: bias, min_tokens, penalties, then the argmax or, at a temperature, a
    random one of those that min_p, top_k and top_p leave; and its logprobs from the logits as they came.

    Columns of `vocab_size` and more are the padding of a sharded head: never sampled, no part of any logprob.
    """
    raw = _vocabulary_only(logits, vocab_size)
    token_ids = _choose(apply_rules(raw, inputs, state, vocab_size=vocab_size), inputs, vocab_size)
    live = inputs.lanes < state.last_ids.shape[0] - 1
    wanted = jnp.where(live, inputs.num_logprobs, -1)
    reported = _report(raw, token_ids, wanted, vocab_size=vocab_size, max_logprobs=max_logprobs)
    return SampleOutputs(token_ids, *reported)


def prompt_logprobs(
    logits: Float[Array, "Q V"], target_ids: Int[Array, " Q"], max_logprobs: int, *, vocab_size: int
) -> LogprobTable:
    """The logprob and rank of each prompt position's next token, and the position's likeliest tokens."""
    raw = _vocabulary_only(logits, vocab_size)
    wanted = jnp.full(target_ids.shape, max_logprobs, jnp.int32)
    return _report(raw, target_ids, wanted, vocab_size=vocab_size, max_logprobs=max_logprobs)


def _vocabulary_only(logits: Float[Array, "Q V"], vocab_size: int) -> Float[Array, "Q X"]:
    """The logits in float32, a multiple of BLOCK wide, with every column that is not a token at -inf."""
    logits = logits.astype(jnp.float32)
    width = logits.shape[1]
    if width < vocab_size:
        raise ValueError(f"logits have {width} columns for vocab_size={vocab_size}; pass the model's whole head")
    logits = jnp.pad(logits, ((0, 0), (0, -width % BLOCK)))
    if logits.shape[1] == vocab_size:
        return logits
    return jnp.where(lax.broadcasted_iota(jnp.int32, logits.shape, 1) < vocab_size, logits, -jnp.inf)


def _choose(logits: Float[Array, "Q V"], inputs: SamplingInputs, vocab_size: int) -> Int[Array, " Q"]:
    """The likeliest token of each greedy row, and of every other one a random token that truncation leaves."""
    best = jnp.max(logits, axis=-1)
    # Two plain reductions: argmax is a reduction over pairs, which the CPU backend does not vectorise (5 times slower).
    index = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    likeliest = jnp.min(jnp.where(logits == best[:, None], index, vocab_size - 1), axis=-1)
    greedy = is_greedy(inputs)

    def random() -> Int[Array, " Q"]:
        tokens = all_tokens(logits, best, inputs)
        weights = kept_weights(tokens, truncate(tokens, inputs))
        sampled = index_above(weights, uniforms(inputs) * row_sums(weights))
        return jnp.where(greedy, likeliest, jnp.minimum(sampled, vocab_size - 1))

    return lax.cond(jnp.all(greedy), lambda: likeliest, random)


def _report(
    logits: Float[Array, "Q V"],
    token_ids: Int[Array, " Q"],
    wanted: Int[Array, " Q"],
    *,
    vocab_size: int,
    max_logprobs: int,
) -> LogprobTable:
    """Logprob, rank and `wanted` top entries per row; all 0 where `wanted` is negative, and in entries past `wanted`.

    `V` is a multiple of BLOCK; columns of `vocab_size` and more are -inf. Nothing is computed that no row wants.
    """
    nothing = LogprobTable(
        jnp.zeros(token_ids.shape, jnp.float32),
        jnp.zeros(token_ids.shape, jnp.int32),
        jnp.zeros((*token_ids.shape, max_logprobs), jnp.int32),
        jnp.zeros((*token_ids.shape, max_logprobs), jnp.float32),
    )

    def compute() -> LogprobTable:
        normalisers = _log_normalisers(logits)
        logprobs, ranks = _logprob_and_rank(logits, normalisers, token_ids)

        def top() -> tuple[Array, Array]:
            return _top_lists(logits, normalisers, wanted, min(max_logprobs, vocab_size), max_logprobs)

        lists = lax.cond(jnp.any(wanted > 0), top, lambda: (nothing.top_ids, nothing.top_logprobs))
        return LogprobTable(jnp.where(wanted >= 0, logprobs, 0), jnp.where(wanted >= 0, ranks, 0), *lists)

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
    values, ids = largest(logits, count)
    listed = jnp.arange(count) < wanted[:, None]
    padding = ((0, 0), (0, width - count))
    logprobs = jnp.where(listed, values - normalisers[:, None], 0)
    return jnp.pad(jnp.where(listed, ids, 0), padding), jnp.pad(logprobs, padding)
