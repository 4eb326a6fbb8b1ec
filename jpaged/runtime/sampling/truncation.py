"""What min_p, top_k and top_p leave of each row's tokens.

Exactly k tokens, the smallest nucleus, ties by lowest index, at least one token; each row by itself.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jpaged.runtime.sampling.inputs import SamplingInputs, is_greedy
from jpaged.runtime.sampling.vocabulary import index_above, largest, pick, row_sums

NUM_RANKED = 64
"""This many tokens per row are ranked outright. Most cuts fall among them; the others cost a bisection."""

_INFINITY_BITS = 0x7F800000


class Tokens(NamedTuple):
    """Some tokens of each row: how far each lies below the row's best one, in units of the temperature, and its id.

    A distance is never negative, so that its int32 image orders as it does; `exp(-distance)` is a probability
    relative to the best token's.
    """

    distances: Float[Array, "Q X"]
    ids: Int[Array, "Q X"]


class Cut(NamedTuple):
    """The last token that a row keeps, in the order of smaller distance first, then lower id."""

    distance: Float[Array, " Q"]
    last_id: Int[Array, " Q"]


Weigh = Callable[[Tokens], Float[Array, "Q X"]]


def all_tokens(logits: Float[Array, "Q V"], best: Float[Array, " Q"], inputs: SamplingInputs) -> Tokens:
    """Every token of each row. `best` is the row's largest logit.

    The subtraction comes before the division: a temperature of 1e-4 then makes nothing worse than a weight of 0.
    """
    temperature = jnp.where(is_greedy(inputs), 1, inputs.temperature)
    distances = (best[:, None] - logits) / temperature[:, None]
    distances = jnp.where(logits == -jnp.inf, jnp.inf, distances)
    return Tokens(distances, lax.broadcasted_iota(jnp.int32, logits.shape, 1))


def kept_weights(tokens: Tokens, cut: Cut) -> Float[Array, "Q X"]:
    """Each token's probability relative to the row's best token, and 0 past the cut."""
    limit, last_id = cut.distance[:, None], cut.last_id[:, None]
    kept = (tokens.distances < limit) | ((tokens.distances == limit) & (tokens.ids <= last_id))
    return jnp.where(kept, jnp.exp(-tokens.distances), 0)


def truncate(tokens: Tokens, inputs: SamplingInputs) -> Cut:
    """The cut that min_p, then top_k, then top_p over what is left make together. `tokens` is all_tokens."""
    width = tokens.distances.shape[1]
    wants_top_k = ~is_greedy(inputs) & (inputs.top_k > 0) & (inputs.top_k < width)
    wants_top_p = ~is_greedy(inputs) & (inputs.top_p < 1)
    min_p_distance = -jnp.log(jnp.clip(inputs.min_p, 0, 1))
    cut = Cut(min_p_distance, jnp.full(min_p_distance.shape, width, jnp.int32))

    def ranked() -> Cut:
        values, ids = largest(-tokens.distances, min(NUM_RANKED, width))
        search = tokens, Tokens(-values, ids)
        top_k_cut = _cut_reaching(*search, _count, inputs.top_k.astype(jnp.float32), wants_top_k)
        left = _only(wants_top_k & _is_before(top_k_cut, cut), top_k_cut, cut)

        def weigh(some: Tokens) -> Float[Array, "Q X"]:
            return kept_weights(some, left)

        target = inputs.top_p * row_sums(weigh(tokens))
        return _only(wants_top_p, _cut_reaching(*search, weigh, target, wants_top_p), left)

    return lax.cond(jnp.any(wants_top_k | wants_top_p), ranked, lambda: cut)


def _count(tokens: Tokens) -> Float[Array, "Q X"]:
    return jnp.ones_like(tokens.distances)


def _cut_reaching(
    tokens: Tokens, leading: Tokens, weigh: Weigh, target: Float[Array, " Q"], wanted: Bool[Array, " Q"]
) -> Cut:
    """The earliest cut up to which a row's weights sum to the target or more, at least one token.

    A row whose ranked tokens reach the target is cut among them, whether or not the batch pays for a bisection:
    the two sum in different orders, and a row's result must not depend on the rest of the batch.
    """
    reached = jnp.cumsum(weigh(leading), axis=-1) >= target[:, None]
    found = jnp.any(reached, axis=-1)
    place = jnp.argmax(reached, axis=-1)
    near = Cut(pick(leading.distances, place), pick(leading.ids, place))
    far = lax.cond(jnp.any(wanted & ~found), lambda: _bisect(tokens, weigh(tokens), target), lambda: near)
    return _only(found, near, far)


def _bisect(tokens: Tokens, weights: Float[Array, "Q V"], target: Float[Array, " Q"]) -> Cut:
    """As `_cut_reaching`, over all tokens: bisection over the int32 image of the distance, one pass per bit.

    Tokens at one distance that have any weight have the same, so how many of them are needed is a division.
    """
    distances = tokens.distances

    def sum_up_to(limit: Float[Array, " Q"]) -> Float[Array, " Q"]:
        return row_sums(jnp.where(distances <= limit[:, None], weights, 0))

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        reached = sum_up_to(lax.bitcast_convert_type(middle, jnp.float32)) >= target
        return jnp.where(reached, low, middle + 1), jnp.where(reached, middle, high)

    start = jnp.zeros_like(target, jnp.int32), jnp.full_like(target, _INFINITY_BITS, jnp.int32)
    bits, _ = lax.fori_loop(0, 31, halve, start)
    limit = lax.bitcast_convert_type(bits, jnp.float32)
    tied = (distances == limit[:, None]) & (weights > 0)
    before = row_sums(jnp.where(distances < limit[:, None], weights, 0))
    weight = jnp.max(jnp.where(tied, weights, 0), axis=-1)
    needed = jnp.ceil((target - before) / jnp.where(weight > 0, weight, 1))
    return Cut(limit, index_above(tied.astype(jnp.float32), jnp.maximum(needed, 1) - 0.5))


def _is_before(a: Cut, b: Cut) -> Bool[Array, " Q"]:
    return (a.distance < b.distance) | ((a.distance == b.distance) & (a.last_id < b.last_id))


def _only(rows: Bool[Array, " Q"], chosen: Cut, other: Cut) -> Cut:
    return Cut(*(jnp.where(rows, a, b) for a, b in zip(chosen, other, strict=True)))
