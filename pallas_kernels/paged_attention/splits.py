"""Parts of one row's attention, computed apart.

Lives here: how many parts there are by default, and how they become one.
Promises: float32; a part that saw nothing has no weight.
Must not know: who computes the parts.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

MOST_SPLITS = 32
_PROGRAMS_TO_FILL_A_GPU = 512
_TOKENS_WORTH_A_SPLIT = 256


def default_splits(num_programs: int, longest: int) -> int:
    """A power of two: enough programs to fill a large GPU four times over, but at least 256 tokens a split."""
    wanted = min(-(-_PROGRAMS_TO_FILL_A_GPU // num_programs), MOST_SPLITS)
    return min(_power_of_two(wanted), most_useful_splits(longest))


def most_useful_splits(longest: int) -> int:
    """A power of two: as many splits as a context of `longest` tokens has any use for."""
    return _power_of_two(min(-(-longest // _TOKENS_WORTH_A_SPLIT), MOST_SPLITS))


def _power_of_two(count: int) -> int:
    return 1 << max(0, (count - 1).bit_length())


def merge(out: Float[Array, "B X *heads H"], log_total: Float[Array, "B X *heads"]) -> Float[Array, "B *heads H"]:
    """The whole from X normalised parts and the logarithms of their sums of weights."""
    # A part that saw nothing has log_total MASKED, hence weight 0, unless all are such: then every `out` is 0.
    weight = jnp.exp(log_total - log_total.max(axis=1, keepdims=True))
    weight = weight / weight.sum(axis=1, keepdims=True)
    return (out * weight[..., None]).sum(axis=1)
