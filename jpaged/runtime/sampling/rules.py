"""The rules that change logits before a token is chosen: logit_bias, min_tokens and the penalties, in that order.

A row that asks for no rule keeps its logits bit for bit; a rule that no row asks for costs nothing.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jpaged.runtime.sampling.inputs import SamplingInputs
from jpaged.runtime.sampling.lane_state import LaneState


def apply_rules(
    logits: Float[Array, "Q V"], inputs: SamplingInputs, state: LaneState, *, vocab_size: int
) -> Float[Array, "Q V"]:
    """The logits after every rule. Ids of `vocab_size` or more in bias and stop lists are no tokens and do nothing."""
    live = inputs.lanes < state.last_ids.shape[0] - 1
    bias_ids = state.bias_ids[inputs.lanes]
    biased = live & jnp.any((bias_ids >= 0) & (bias_ids < vocab_size), axis=-1)
    short = live & (inputs.output_position < inputs.min_tokens)
    penalised = live & (
        (inputs.repetition_penalty != 1) | (inputs.frequency_penalty != 0) | (inputs.presence_penalty != 0)
    )

    def apply(x: Float[Array, "Q V"]) -> Float[Array, "Q V"]:
        x = lax.cond(jnp.any(biased), lambda y: _add_bias(y, biased, bias_ids, inputs, state), _unchanged, x)
        # After the bias, so that no bias can bring a stop id back.
        x = lax.cond(jnp.any(short), lambda y: _mask_stop_ids(y, short, inputs, state), _unchanged, x)
        return lax.cond(jnp.any(penalised), lambda y: _penalise(y, penalised, inputs, state), _unchanged, x)

    # One condition around the three: the common step, with no rule at all, tests once and copies nothing.
    return lax.cond(jnp.any(biased | short | penalised), apply, _unchanged, logits)


def _unchanged(logits: Float[Array, "Q V"]) -> Float[Array, "Q V"]:
    return logits


def _add_bias(
    logits: Float[Array, "Q V"],
    rows: Bool[Array, " Q"],
    bias_ids: Int[Array, "Q W"],
    inputs: SamplingInputs,
    state: LaneState,
) -> Float[Array, "Q V"]:
    index = _row_index(logits), _droppable_ids(logits, bias_ids, rows)
    return logits.at[index].add(state.bias_values[inputs.lanes], mode="drop")


def _mask_stop_ids(
    logits: Float[Array, "Q V"], rows: Bool[Array, " Q"], inputs: SamplingInputs, state: LaneState
) -> Float[Array, "Q V"]:
    index = _row_index(logits), _droppable_ids(logits, state.stop_ids[inputs.lanes], rows)
    return logits.at[index].set(-jnp.inf, mode="drop")


def _penalise(
    logits: Float[Array, "Q V"], rows: Bool[Array, " Q"], inputs: SamplingInputs, state: LaneState
) -> Float[Array, "Q V"]:
    prompt_counts, output_counts = _token_counts(logits, rows, inputs, state)
    seen = (prompt_counts + output_counts) > 0
    factor = jnp.where(seen, inputs.repetition_penalty[:, None], 1)
    penalised = jnp.where(logits > 0, logits / factor, logits * factor)
    penalised -= inputs.frequency_penalty[:, None] * output_counts.astype(jnp.float32)
    penalised -= inputs.presence_penalty[:, None] * (output_counts > 0)
    return jnp.where(rows[:, None], penalised, logits)


def _token_counts(
    logits: Float[Array, "Q V"], rows: Bool[Array, " Q"], inputs: SamplingInputs, state: LaneState
) -> tuple[Int[Array, "Q V"], Int[Array, "Q V"]]:
    """How often each token stands in each row's prompt, and in its outputs."""
    history = state.history[inputs.lanes]
    positions = jnp.arange(history.shape[1])
    known = rows[:, None] & (positions < inputs.num_tokens[:, None])
    is_output = (positions >= inputs.prompt_len[:, None]).astype(jnp.int32)
    ids = _droppable_ids(logits, history, known)
    counts = jnp.zeros((2, *logits.shape), jnp.int32)
    counts = counts.at[is_output, _row_index(logits), ids].add(1, mode="drop")
    return counts[0], counts[1]


def _row_index(logits: Float[Array, "Q V"]) -> Int[Array, "Q 1"]:
    return jnp.arange(logits.shape[0])[:, None]


def _droppable_ids(
    logits: Float[Array, "Q V"], ids: Int[Array, "Q X"], wanted: Bool[Array, "..."]
) -> Int[Array, "Q X"]:
    """The ids, with the unwanted ones and the negative ones (which would wrap) moved out of range."""
    wanted = wanted.reshape(wanted.shape[0], -1)
    return jnp.where(wanted & (ids >= 0), ids, logits.shape[1])
