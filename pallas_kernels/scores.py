"""How a query-key product becomes a score, and which keys a query sees.

Lives here: ScoreRule, the static part of an attention call, and the checks of a call's arguments.
Promises: one definition of scale, soft cap, ALiBi, causality and window for every implementation.
Must not know: pages, block tables, how an implementation walks over the keys.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.kv_pages import KVPages, check_pool

# Finite stand-in for minus infinity: (-inf) - (-inf) is NaN.
MASKED = -1e30


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


def checked_rule(
    q: Float[Array, "R N H"],
    kv: KVPages,
    layer: ArrayLike,
    *,
    scale: float | None,
    window: int | None,
    soft_cap: float | None,
    alibi_slopes: Float[Array, " N"] | None,
) -> ScoreRule:
    """The rule of a call, or ValueError with what does not fit."""
    check_pool(kv, layer)
    if q.ndim != 3 or q.shape[-1] != kv.head_dim:
        raise ValueError(f"q must be [rows, N, H] with H = {kv.head_dim} as in the pool; got {list(q.shape)}")
    if q.shape[1] % kv.num_kv_heads:
        raise ValueError(f"{q.shape[1]} query heads do not divide into groups of the pool's {kv.num_kv_heads} kv heads")
    if window is not None and window < 1:
        raise ValueError(f"window={window} must be at least 1 (it counts the token itself), or None")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap={soft_cap} must be positive, or None")
    if alibi_slopes is not None and alibi_slopes.shape != (q.shape[1],):
        raise ValueError(f"alibi_slopes must have one slope a query head, [{q.shape[1]}]; got {alibi_slopes.shape}")
    return ScoreRule(q.shape[-1] ** -0.5 if scale is None else scale, window, soft_cap)


def check_tables(block_tables: Int[Array, "B M"], context_lens: Int[Array, " B"]) -> None:
    """Nothing, or ValueError when tables and lengths disagree about the rows or are not integers."""
    if block_tables.ndim != 2 or context_lens.shape != block_tables.shape[:1]:
        raise ValueError(
            f"block_tables [B, M] and context_lens [B] must agree; got {block_tables.shape}, {context_lens.shape}"
        )
    if not all(jnp.issubdtype(x.dtype, jnp.integer) for x in (block_tables, context_lens)):
        raise ValueError(
            f"block_tables and context_lens must be integers; got {block_tables.dtype}, {context_lens.dtype}"
        )
