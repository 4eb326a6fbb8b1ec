"""How a query-key product becomes a score, and which keys a query sees.

There is one definition of scale, soft cap, ALiBi, causality and window for every implementation.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.kv_pages import KVPages
from pallas_kernels.numerics import key_dtype, value_dtype

# Finite stand-in for minus infinity: (-inf) - (-inf) is NaN.
MASKED = -1e30


@jax.tree_util.register_static
@dataclass(frozen=True)
class ScoreRule:
    """Scale, sliding window (None: all keys) and soft cap (None: none) of one attention call."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None

    def score(self, product: Array, distance: Array, slope: Array | None) -> Array:
        """Scores from float32 products; `distance` is query position minus key position, `slope` ALiBi's."""
        score = product * self.scale
        if self.soft_cap is not None:
            score = self.soft_cap * jnp.tanh(score / self.soft_cap)
        if slope is not None:
            score = score - slope * distance.astype(jnp.float32)
        return score

    def visible(self, distance: Int[Array, "*shape"]) -> Bool[Array, "*shape"]:
        """True where a key is seen: not after the query, and inside the window, which counts the query itself."""
        seen = distance >= 0
        return seen if self.window is None else seen & (distance < self.window)

    def first_visible(self, query_position: Array) -> Array:
        """The lowest key position that a query at `query_position` sees, given that it is not negative."""
        if self.window is None:
            return jnp.zeros_like(query_position)
        return jnp.maximum(query_position - self.window + 1, 0)


class AttentionCall(NamedTuple):
    """One call of an attention operation, checked: what each implementation is given.

    It is a tree of arrays; a kernel gets the same tree of references. `kv` has its layer axis. `query_starts` is None
    in decode, where each of the B rows has one query: T = B.
    """

    q: Float[Array, "T N H"]
    kv: KVPages
    block_tables: Int[Array, "B M"]
    context_lens: Int[Array, " B"]
    query_starts: Int[Array, " B+1"] | None
    layer: ArrayLike
    rule: ScoreRule
    slopes: Float[Array, " N"] | None

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.q.shape[1] // self.kv.num_kv_heads

    @property
    def key_dtype(self) -> jnp.dtype:
        """In what queries and keys are multiplied."""
        return key_dtype(self.q.dtype, self.kv.k.dtype)

    @property
    def value_dtype(self) -> jnp.dtype:
        """In what weights and values are multiplied."""
        return value_dtype(self.q.dtype, self.kv.v.dtype)
