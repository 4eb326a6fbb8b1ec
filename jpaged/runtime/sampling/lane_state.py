"""What the device remembers of each lane between steps, and the pure functions that start it, change it and read it.

An entry for the spare lane, an id outside the vocabulary or a position outside the table changes nothing.
"""

from collections import abc
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class LaneState(NamedTuple):
    """`R` lanes and a spare one, the last, which padding rows point at. Donated at every step."""

    last_ids: Int[Array, " R+1"]  # the id last sampled in the lane
    history: Int[Array, "R+1 C"]  # the token id at each position, prompt and outputs; C is max_model_len
    bias_ids: Int[Array, "R+1 W"]  # logit_bias; padding ids are vocab_size or more
    bias_values: Float[Array, "R+1 W"]
    stop_ids: Int[Array, "R+1 E"]  # ids that may not be sampled before min_tokens; padding likewise


def init_lane_state(
    num_lanes: int, max_model_len: int, vocab_size: int, max_bias: int = 512, max_stop_ids: int = 64
) -> LaneState:
    """A state for `num_lanes` lanes and the spare one, with no history, no bias and no stop ids."""
    lanes = num_lanes + 1
    return LaneState(
        last_ids=jnp.zeros(lanes, jnp.int32),
        history=jnp.zeros((lanes, max_model_len), jnp.int32),
        bias_ids=jnp.full((lanes, max_bias), vocab_size, jnp.int32),
        bias_values=jnp.zeros((lanes, max_bias), jnp.float32),
        stop_ids=jnp.full((lanes, max_stop_ids), vocab_size, jnp.int32),
    )


def record_tokens(
    state: LaneState, lanes: Int[Array, " T"], positions: Int[Array, " T"], token_ids: Int[Array, " T"]
) -> LaneState:
    """The state with each packed token of the step written at its position in the history of its lane."""
    lanes = _droppable(state, lanes)
    # A negative index would wrap to the end of the row.
    columns = jnp.where(positions < 0, state.history.shape[1], positions)
    return state._replace(history=state.history.at[lanes, columns].set(token_ids, mode="drop"))


def resolve_token_ids(token_refs: Int[Array, " T"], state: LaneState) -> Int[Array, " T"]:
    """The token ids that the references name: `-1 - r` is the id last sampled in lane `r`, all else is an id."""
    is_reference = token_refs < 0
    lanes = jnp.where(is_reference, -1 - token_refs, 0)
    return jnp.where(is_reference, state.last_ids[lanes], token_refs)


def set_lane(
    state: LaneState,
    lane: Int[Array, ""],
    history: Int[Array, " C"],
    bias_ids: Int[Array, " W"],
    bias_values: Float[Array, " W"],
    stop_ids: Int[Array, " E"],
) -> LaneState:
    """The state with a new sequence in `lane`: everything of the lane is replaced but `last_ids`."""
    return state._replace(
        history=state.history.at[lane].set(history),
        bias_ids=state.bias_ids.at[lane].set(bias_ids),
        bias_values=state.bias_values.at[lane].set(bias_values),
        stop_ids=state.stop_ids.at[lane].set(stop_ids),
    )


def lane_entries(
    state: LaneState,
    token_ids: abc.Sequence[int],
    bias: abc.Mapping[int, float],
    stop_ids: abc.Sequence[int],
    vocab_size: int,
) -> tuple[np.ndarray, ...]:
    """What `set_lane` is given of a sequence, as host arrays: known ids, logit_bias and stop ids, padded."""
    history, bias_ids, bias_values, stops = (np.zeros(a.shape[1:], a.dtype) for a in state[1:])
    history[: len(token_ids)] = token_ids
    bias_ids[:], stops[:] = vocab_size, vocab_size
    bias_ids[: len(bias)], bias_values[: len(bias)] = list(bias), list(bias.values())
    stops[: len(stop_ids)] = stop_ids
    return history, bias_ids, bias_values, stops


def record_samples(
    state: LaneState, lanes: Int[Array, " Q"], token_ids: Int[Array, " Q"], valid: Bool[Array, " Q"]
) -> LaneState:
    """The state with the step's sampled ids as the last ids of their lanes, where `valid`."""
    lanes = jnp.where(valid, _droppable(state, lanes), state.last_ids.shape[0])
    return state._replace(last_ids=state.last_ids.at[lanes].set(token_ids, mode="drop"))


def _droppable(state: LaneState, lanes: Int[Array, " X"]) -> Int[Array, " X"]:
    """The lanes, with the spare one (and any that would wrap) moved out of range, where a scatter drops it."""
    spare = state.last_ids.shape[0] - 1
    return jnp.where((lanes < 0) | (lanes == spare), spare + 1, lanes)
