"""A random token a row, out of what min_p, top_k and top_p leave.

Lives here: the row's own uniform number, and the draw by inverse cumulative probability.
Promises: a row's token depends on that row alone; a token that was cut away, or has probability 0, is never drawn.
Must not know: the rules that shaped the logits, logprobs, slots.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jpaged.runtime.sampling.ranking import row_sums
from jpaged.runtime.sampling.running_sum import index_above
from jpaged.runtime.sampling.sampler_inputs import SamplingInputs
from jpaged.runtime.sampling.truncation import all_tokens, kept_weights, truncate


def draw(logits: Float[Array, "Q V"], best: Float[Array, " Q"], inputs: SamplingInputs) -> Int[Array, " Q"]:
    """One token id a row. `best` is the row's largest logit; `V` is a multiple of LANES.

    A greedy row gets some id, which the caller must not use.
    """
    tokens = all_tokens(logits, best, inputs)
    weights = kept_weights(tokens, truncate(tokens, inputs))
    return index_above(weights, uniforms(inputs) * row_sums(weights))


def uniforms(inputs: SamplingInputs) -> Float[Array, " Q"]:
    """One number in [0, 1) a row: a function of its seed, sample index and output position, and of nothing else."""
    words = jnp.stack([inputs.seed_hi, inputs.seed_lo], axis=-1)
    keys = jax.random.wrap_key_data(lax.bitcast_convert_type(words, jnp.uint32), impl="threefry2x32")
    fold = jax.vmap(jax.random.fold_in)
    keys = fold(fold(keys, inputs.sample_index), inputs.output_position)
    return jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(keys)
