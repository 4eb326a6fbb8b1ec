"""The sampler: from a step's logits to token ids and what is reported of them.

Lives here: `sample` and `prompt_logprobs`, pure functions traced inside the jitted step, and their outputs.
Promises: a row's result depends on its own logits, parameters and history alone; one program serves every mix of
parameters, and each costly part runs only in a step in which some row asks for it.
Must not know: requests, pages, batching; nothing here reads a value on the host.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jpaged.runtime.sampling.logit_rules import apply_rules
from jpaged.runtime.sampling.ranking import LANES
from jpaged.runtime.sampling.row_state import (
    LaneState,
    init_lane_state,
    record_samples,
    record_tokens,
    resolve_token_ids,
    set_row,
)
from jpaged.runtime.sampling.sampler_inputs import SamplingInputs, is_greedy, split_seed
from jpaged.runtime.sampling.token_draw import draw
from jpaged.runtime.sampling.token_logprobs import TokenLogprobs, token_logprobs

__all__ = [
    "LaneState",
    "SampleOutputs",
    "SamplingInputs",
    "TokenLogprobs",
    "init_lane_state",
    "prompt_logprobs",
    "record_samples",
    "record_tokens",
    "resolve_token_ids",
    "sample",
    "set_row",
    "split_seed",
]


class SampleOutputs(NamedTuple):
    """One sampled token a row, and its logprobs under the raw logits; `N` is max_logprobs.

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
    """One token a row, after vLLM V1: bias, min_tokens, penalties, then the argmax or, at a temperature, a draw out
    of what min_p, top_k and top_p leave; and its logprobs from the logits as they came.

    Columns of `vocab_size` and more are the padding of a sharded head: never sampled, no part of any logprob.
    """
    raw = _vocabulary_only(logits, vocab_size)
    token_ids = _choose(apply_rules(raw, inputs, state, vocab_size=vocab_size), inputs, vocab_size)
    live = inputs.lanes < state.last_ids.shape[0] - 1
    wanted = jnp.where(live, inputs.num_logprobs, -1)
    reported = token_logprobs(raw, token_ids, wanted, vocab_size=vocab_size, max_logprobs=max_logprobs)
    return SampleOutputs(token_ids, *reported)


def prompt_logprobs(
    logits: Float[Array, "Q V"], target_ids: Int[Array, " Q"], max_logprobs: int, *, vocab_size: int
) -> TokenLogprobs:
    """The logprob and rank of each prompt position's next token, and the position's likeliest tokens."""
    raw = _vocabulary_only(logits, vocab_size)
    wanted = jnp.full(target_ids.shape, max_logprobs, jnp.int32)
    return token_logprobs(raw, target_ids, wanted, vocab_size=vocab_size, max_logprobs=max_logprobs)


def _vocabulary_only(logits: Float[Array, "Q V"], vocab_size: int) -> Float[Array, "Q X"]:
    """The logits in float32, a multiple of LANES wide, with every column that is not a token at -inf."""
    logits = logits.astype(jnp.float32)
    width = logits.shape[1]
    if width < vocab_size:
        raise ValueError(f"logits have {width} columns for vocab_size={vocab_size}; pass the model's whole head")
    logits = jnp.pad(logits, ((0, 0), (0, -width % LANES)))
    if logits.shape[1] == vocab_size:
        return logits
    return jnp.where(lax.broadcasted_iota(jnp.int32, logits.shape, 1) < vocab_size, logits, -jnp.inf)


def _choose(logits: Float[Array, "Q V"], inputs: SamplingInputs, vocab_size: int) -> Int[Array, " Q"]:
    best = jnp.max(logits, axis=-1)
    # Two plain reductions: argmax is a reduction over pairs, which the CPU backend does not vectorise (5 times slower).
    index = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    likeliest = jnp.min(jnp.where(logits == best[:, None], index, vocab_size - 1), axis=-1)
    greedy = is_greedy(inputs)
    return lax.cond(
        jnp.all(greedy),
        lambda: likeliest,
        lambda: jnp.where(greedy, likeliest, jnp.minimum(draw(logits, best, inputs), vocab_size - 1)),
    )
