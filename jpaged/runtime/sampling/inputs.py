"""What the sampler is told about each logits row of a step, and the random number that follows from it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

GREEDY_BELOW = 1e-5
"""A temperature below this takes the largest logit. Dividing by it would gain nothing but infinities."""


class SamplingInputs(NamedTuple):
    """The sampling parameters of one step, one entry per logits row (`Q` of them), int32 or float32.

    A padding entry has `lanes` at the spare lane (the last of LaneState); its other fields may be anything
    with a temperature of 0.
    """

    temperature: Float[Array, " Q"]  # below GREEDY_BELOW: greedy
    top_p: Float[Array, " Q"]  # 1: off
    min_p: Float[Array, " Q"]  # 0: off
    repetition_penalty: Float[Array, " Q"]  # 1: off
    presence_penalty: Float[Array, " Q"]  # 0: off
    frequency_penalty: Float[Array, " Q"]  # 0: off
    lanes: Int[Array, " Q"]  # index into LaneState
    top_k: Int[Array, " Q"]  # 0: off
    seed_hi: Int[Array, " Q"]  # bit patterns of the seed's two words, see split_seed
    seed_lo: Int[Array, " Q"]
    sample_index: Int[Array, " Q"]  # which of a request's n samples
    output_position: Int[Array, " Q"]  # how many outputs precede this one
    prompt_len: Int[Array, " Q"]
    num_tokens: Int[Array, " Q"]  # prompt and outputs known before this sample
    min_tokens: Int[Array, " Q"]
    num_logprobs: Int[Array, " Q"]  # how many top logprobs; 0: the sampled token's only; -1: none at all


# The step's packed arrays hold the fields in this order, each with one entry per logits row.
SAMPLE_FLOATS, SAMPLE_INTS = SamplingInputs._fields[:6], SamplingInputs._fields[6:]


def is_greedy(inputs: SamplingInputs) -> Bool[Array, " Q"]:
    """Which rows take their largest logit."""
    return inputs.temperature < GREEDY_BELOW


def split_seed(seed: int) -> tuple[int, int]:
    """The high and the low word of a seed in [-2**63, 2**63), each as the int32 with its bit pattern.

    JAX with 64-bit types off would keep the low word alone, so that 0 and 2**32 would be one seed.
    """
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed={seed} does not fit in 64 bits; use a seed from {-(2**63)} to {2**63 - 1}")
    words = (seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF
    high, low = (word - 2**32 if word >= 2**31 else word for word in words)
    return high, low


def uniforms(inputs: SamplingInputs) -> Float[Array, " Q"]:
    """One number in [0, 1) per row: a function of its seed, sample index and output position, and of nothing else."""
    words = jnp.stack([inputs.seed_hi, inputs.seed_lo], axis=-1)
    keys = jax.random.wrap_key_data(lax.bitcast_convert_type(words, jnp.uint32), impl="threefry2x32")
    fold = jax.vmap(jax.random.fold_in)
    keys = fold(fold(keys, inputs.sample_index), inputs.output_position)
    return jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(keys)
