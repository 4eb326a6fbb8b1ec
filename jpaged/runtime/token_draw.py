"""A random token a row, out of what min_p, top_k and top_p leave.

Lives here: truncation by bisection, and the draw by inverse cumulative probability. No sort of the vocabulary.
Promises: a row's token depends on that row alone; a token that was cut away, or has probability 0, is never drawn.
Must not know: the rules that shaped the logits, logprobs, slots.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jpaged.runtime.sampler_inputs import GREEDY_BELOW, SamplingInputs

LANES = 128
"""Sums over the vocabulary go in two levels, blocks of this many tokens first: fewer roundings, and no long scan."""

_INFINITY_BITS = 0x7F800000


class Cut(NamedTuple):
    """Where a row's ranking (smaller distance first, then lower index) ends: at `distance_bits`, `index`, inclusive."""

    distance_bits: Int[Array, " Q"]
    index: Int[Array, " Q"]


def draw(logits: Float[Array, "Q V"], best: Float[Array, " Q"], inputs: SamplingInputs) -> Int[Array, " Q"]:
    """One token id a row. `best` is each row's largest logit; `V` is a multiple of LANES.

    A greedy row gets some id that its caller must not use.
    """
    distances = scaled_distances(logits, best, inputs)
    weights = kept_weights(distances, truncation(distances, inputs))
    total = jnp.sum(_block_sums(weights), axis=-1)
    return locate(weights, uniforms(inputs) * total)


def scaled_distances(
    logits: Float[Array, "Q V"], best: Float[Array, " Q"], inputs: SamplingInputs
) -> Float[Array, "Q V"]:
    """How far each logit lies below its row's best one, in units of the temperature: `exp(-distance)` is a weight.

    Never negative, so the int32 image of a distance orders as the distance does. The subtraction comes before the
    division: a temperature of 1e-4 then overflows to nothing worse than a weight of 0.
    """
    temperature = jnp.where(is_greedy(inputs), 1, inputs.temperature)
    distances = (best[:, None] - logits) / temperature[:, None]
    return jnp.where(logits == -jnp.inf, jnp.inf, distances)


def is_greedy(inputs: SamplingInputs) -> Bool[Array, " Q"]:
    """Which rows take their largest logit."""
    return inputs.temperature < GREEDY_BELOW


def truncation(distances: Float[Array, "Q V"], inputs: SamplingInputs) -> Cut:
    """The cut that min_p, then top_k, then top_p over what is left make together."""
    sampled = ~is_greedy(inputs)
    width = distances.shape[1]
    cut = _min_p_cut(inputs, width)

    wants_top_k = sampled & (inputs.top_k > 0) & (inputs.top_k < width)
    top_k = jnp.where(wants_top_k, inputs.top_k, width).astype(jnp.float32)
    top_k_cut = lax.cond(
        jnp.any(wants_top_k), lambda: _cut_reaching(distances, jnp.ones_like(distances), top_k), lambda: cut
    )
    cut = _earlier(cut, _only(wants_top_k, top_k_cut, cut))

    def top_p_cut() -> Cut:
        weights = kept_weights(distances, cut)
        return _cut_reaching(distances, weights, inputs.top_p * jnp.sum(_block_sums(weights), axis=-1))

    wants_top_p = sampled & (inputs.top_p < 1)
    return _only(wants_top_p, lax.cond(jnp.any(wants_top_p), top_p_cut, lambda: cut), cut)


def kept_weights(distances: Float[Array, "Q V"], cut: Cut) -> Float[Array, "Q V"]:
    """Each token's probability relative to its row's best token, and 0 for the tokens past the cut."""
    bits = _bits(distances)
    limit, last = cut.distance_bits[:, None], cut.index[:, None]
    kept = (bits < limit) | ((bits == limit) & (_token_index(distances) <= last))
    return jnp.where(kept, jnp.exp(-distances), 0)


def locate(weights: Float[Array, "Q V"], target: Float[Array, " Q"]) -> Int[Array, " Q"]:
    """The first index at which the running sum of a row's weights exceeds the target.

    Never one of weight 0 while the row has another: where rounding keeps the sum below the target, the last index
    that has weight.
    """
    blocks = weights.reshape(weights.shape[0], -1, LANES)
    sums = _block_sums(weights)
    running = jnp.cumsum(sums, axis=-1)
    block = _first_above(running, sums, target)
    before = _pick(running - sums, block)
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    lane = _first_above(jnp.cumsum(inside, axis=-1), inside, target - before)
    return block * LANES + lane


def uniforms(inputs: SamplingInputs) -> Float[Array, " Q"]:
    """One number in [0, 1) a row, a function of its seed, sample index and output position and of nothing else."""
    words = jnp.stack([inputs.seed_hi, inputs.seed_lo], axis=-1)
    keys = jax.random.wrap_key_data(lax.bitcast_convert_type(words, jnp.uint32), impl="threefry2x32")
    fold = jax.vmap(jax.random.fold_in)
    keys = fold(fold(keys, inputs.sample_index), inputs.output_position)
    return jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(keys)


def _min_p_cut(inputs: SamplingInputs, width: int) -> Cut:
    # abs: min_p of 1 would give -0.0, whose bits are a negative integer.
    widest = jnp.abs(jnp.log(jnp.clip(inputs.min_p, 0, 1)))
    return Cut(_bits(widest), jnp.full(widest.shape, width, jnp.int32))


def _cut_reaching(distances: Float[Array, "Q V"], weights: Float[Array, "Q V"], target: Float[Array, " Q"]) -> Cut:
    """The earliest cut up to which a row's weights sum to the target or more; at least one token stays.

    Bisection over the int32 image of the distance, one pass over the vocabulary a bit. Tokens at one distance have
    one weight, so how many of them are needed is a division.
    """
    bits = _bits(distances)

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        reached = _masked_sum(weights, bits <= middle[:, None]) >= target
        return jnp.where(reached, low, middle + 1), jnp.where(reached, middle, high)

    start = jnp.zeros_like(target, jnp.int32), jnp.full_like(target, _INFINITY_BITS, jnp.int32)
    limit, _ = lax.fori_loop(0, 31, halve, start)
    tied = (bits == limit[:, None]) & (weights > 0)
    before = _masked_sum(weights, bits < limit[:, None])
    weight = jnp.max(jnp.where(tied, weights, 0), axis=-1)
    missing = jnp.ceil((target - before) / jnp.where(weight > 0, weight, 1))
    needed = jnp.maximum(missing, 1)
    return Cut(limit, locate(tied.astype(jnp.float32), needed - 0.5))


def _earlier(a: Cut, b: Cut) -> Cut:
    a_first = (a.distance_bits < b.distance_bits) | ((a.distance_bits == b.distance_bits) & (a.index < b.index))
    return _only(a_first, a, b)


def _only(rows: Bool[Array, " Q"], chosen: Cut, other: Cut) -> Cut:
    return Cut(*(jnp.where(rows, a, b) for a, b in zip(chosen, other, strict=True)))


def _first_above(running: Float[Array, "Q X"], weights: Float[Array, "Q X"], target: Float[Array, " Q"]):
    """The first column of positive weight whose running sum exceeds the target, else the last of positive weight.

    The weight is tested too because a parallel scan need not be monotone in its last bit.
    """
    columns = _token_index(weights)
    positive = weights > 0
    width = weights.shape[1]
    first = jnp.min(jnp.where(positive & (running > target[:, None]), columns, width), axis=-1)
    last = jnp.max(jnp.where(positive, columns, 0), axis=-1)
    return jnp.where(first < width, first, last)


def _masked_sum(weights: Float[Array, "Q V"], mask: Bool[Array, "Q V"]) -> Float[Array, " Q"]:
    return jnp.sum(_block_sums(jnp.where(mask, weights, 0)), axis=-1)


def _block_sums(weights: Float[Array, "Q V"]) -> Float[Array, "Q X"]:
    return jnp.sum(weights.reshape(weights.shape[0], -1, LANES), axis=-1)


def _bits(distances: Float[Array, "..."]) -> Int[Array, "..."]:
    return lax.bitcast_convert_type(distances, jnp.int32)


def _token_index(like: Array) -> Int[Array, "Q V"]:
    return lax.broadcasted_iota(jnp.int32, like.shape, 1)


def _pick(values: Array, column: Int[Array, " Q"]) -> Array:
    return jnp.take_along_axis(values, column[:, None], axis=1)[:, 0]
