"""Decode attention: one query per row over the row's pages.

Empty rows give zeros; nothing outside a row's context reaches its output.
"""

from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels.attend import attend, checked_call
from pallas_kernels.kv_pages import KVPages
from pallas_kernels.tuning import DecodeTuning

__all__ = ["DecodeTuning", "paged_attention"]


def paged_attention(
    q: Float[Array, "B N H"],
    kv: KVPages,
    block_tables: Int[Array, "B M"],
    context_lens: Int[Array, " B"],
    *,
    layer: ArrayLike = 0,
    scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Float[Array, " N"] | None = None,
    implementation: str | None = None,
    interpret: bool = False,
    tuning: DecodeTuning | None = None,
) -> Float[Array, "B N H"]:
    """Attention output of each row's newest token, `[B, N, H]` in q's dtype; rows of length 0 give zeros.

    `context_lens[b]` counts the tokens of row b with the current one, whose key is already in the pool; position i
    lives in page `block_tables[b, i // S]` at offset `i % S`. Table entries past the end may hold anything.
    Query head n reads kv head `n // (N / K)`. `layer` may be traced. `scale` defaults to `H ** -0.5`. `window` is
    how many newest tokens are seen, the current one included. `soft_cap` is c in `c * tanh(score / c)`.
    `alibi_slopes` are float32; the bias is `slope * (key position - query position)`, after the soft cap.
    Sums and softmax are float32. `implementation` is None (what `resolve` says), `reference`, `xla`, `triton` or
    `mosaic_gpu`; docs/kernels.md says what each supports. `tuning` is None (what the package's table says for the shape
    and device, else the implementation's own rules) or sizes.

    Raises ValueError for shapes that do not fit together, NotImplementedError for what an implementation lacks.
    Source: PagedAttention, section 4.1 (Kwon et al., SOSP 2023).
    """
    call = checked_call(
        q, kv, block_tables, context_lens, None, layer, scale=scale, window=window, soft_cap=soft_cap,
        alibi_slopes=alibi_slopes,
    )  # fmt: skip
    return attend("paged_attention", call, implementation, interpret, tuning)
