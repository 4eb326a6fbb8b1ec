"""Softmax-weighted sums over keys that arrive chunk by chunk.

The state is float32. A masked chunk leaves it bit for bit as it was; a state that saw nothing gives zeros, one that saw
a NaN gives NaN.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.scores import MASKED


class SoftmaxState(NamedTuple):
    """Highest score so far, sum of weights and weighted sum of values, both relative to that score."""

    peak: Float[Array, "*rows"]
    total: Float[Array, "*rows"]
    out: Float[Array, "*rows W"]


def start(rows: tuple[int, ...], width: int) -> SoftmaxState:
    """The state that has seen no key."""
    return SoftmaxState(
        jnp.full(rows, MASKED, jnp.float32),
        jnp.zeros(rows, jnp.float32),
        jnp.zeros((*rows, width), jnp.float32),
    )


def absorb(
    state: SoftmaxState,
    score: Float[Array, "*rows C"],
    visible: Bool[Array, "*rows C"],
    weigh: Callable[[Float[Array, "*rows C"]], Float[Array, "*rows W"]],
) -> SoftmaxState:
    """The state after C more keys; `weigh` returns the float32 sum of their values under the given weights."""
    score = jnp.where(visible, score, MASKED)
    peak = jnp.maximum(state.peak, score.max(axis=-1))
    decay = jnp.exp(state.peak - peak)
    # Selected once more: where no key is visible yet, MASKED - MASKED is 0 and its exponential 1.
    weight = jnp.where(visible, jnp.exp(score - peak[..., None]), 0.0)
    return SoftmaxState(
        peak,
        state.total * decay + weight.sum(axis=-1),
        state.out * decay[..., None] + weigh(weight),
    )


def finish(state: SoftmaxState) -> Float[Array, "*rows W"]:
    """The weighted mean of the values seen, zeros where none was."""
    seen = state.total != 0
    return state.out * jnp.where(seen, 1 / jnp.where(seen, state.total, 1), 0)[..., None]


def log_total(state: SoftmaxState) -> Float[Array, "*rows"]:
    """The logarithm of the sum of all weights, by which parts of one softmax are merged; MASKED where none was seen."""
    seen = state.total != 0
    return jnp.where(seen, state.peak + jnp.log(jnp.where(seen, state.total, 1.0)), MASKED)


def merge(out: Float[Array, "B X *heads H"], log_total: Float[Array, "B X *heads"]) -> Float[Array, "B *heads H"]:
    """The whole from X normalised parts and the logarithms of their sums of weights."""
    # A part that saw nothing has log_total MASKED, hence weight 0, unless all are such: then every `out` is 0.
    weight = jnp.exp(log_total - log_total.max(axis=1, keepdims=True))
    weight = weight / weight.sum(axis=1, keepdims=True)
    return (out * weight[..., None]).sum(axis=1)
