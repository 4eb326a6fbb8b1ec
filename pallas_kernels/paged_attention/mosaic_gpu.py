"""Decode attention through Pallas' Mosaic GPU backend.

Lives here: which of two kernels an NVIDIA GPU gets, what each can do, their sizes.
Promises: float32 softmax and merge of splits; what neither kernel can do is refused with the reason.
Must not know: copies, tensor cores, pages.
"""

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from pallas_kernels import mosaic_call
from pallas_kernels.kv_pages import KVPages
from pallas_kernels.paged_attention import mosaic_ampere, mosaic_hopper, splits
from pallas_kernels.paged_attention.mosaic_walk import Walk
from pallas_kernels.paged_attention.tuned import DecodeTuning
from pallas_kernels.scores import ScoreRule
from pallas_kernels.support import Support

SUPPORT = {
    "Hopper": Support(
        hardware="compute capability 9.0",
        proof="interpreted with race detection; compiled",
        pool_dtypes=("bfloat16", "float16"),
        page_size_multiple=8,
        head_dims=(64, 128),
        max_group=mosaic_hopper.QUERY_ROWS,
        score_options=("window", "soft_cap"),
        tuning=("block_tokens", "splits", "num_stages"),
        query_dtype_is_pool_dtype=True,
    ),
    "Ampere": Support(
        hardware="compute capability 8.0 and up, but 9.0",
        proof="compiled only",
        pool_dtypes=("bfloat16", "float16"),
        page_size_multiple=16,
        head_dims=(64, 128),
        max_group=mosaic_ampere.QUERY_ROWS,
        score_options=("window", "soft_cap"),
        tuning=("block_tokens", "splits", "num_stages"),
        query_dtype_is_pool_dtype=True,
        notes=("JAX 0.12 and up", "its ring of cp.async stages has never run"),
    ),
}

BLOCK_TOKENS = 64


def paged_attention(
    q: Float[Array, "B N H"],
    kv: KVPages,
    block_tables: Int[Array, "B M"],
    context_lens: Int[Array, " B"],
    layer: ArrayLike,
    rule: ScoreRule,
    alibi_slopes: Float[Array, " N"] | None,
    *,
    tuning: DecodeTuning | None = None,
    interpret: bool = False,
) -> Float[Array, "B N H"]:
    """Attention output of each row's newest token."""
    variant = _variant(interpret)
    SUPPORT[variant].check(f"mosaic_gpu ({variant})", kv, q, rule, alibi_slopes, tuning)
    num_rows, num_heads, head_dim = q.shape
    group = num_heads // kv.num_kv_heads
    walk, stages = _sizes(tuning, variant, num_rows, block_tables.shape[1], kv, rule)
    lanes = mosaic_ampere.QUERY_ROWS if variant == "Ampere" else -(-group // 8) * 8
    query = q.reshape(num_rows, kv.num_kv_heads, group, head_dim)
    query = jnp.pad(query, ((0, 0), (0, 0), (0, lanes - group), (0, 0)))
    layer = jnp.reshape(jnp.asarray(layer, jnp.int32), (1,))
    arrays = (query, layer, block_tables.astype(jnp.int32), context_lens.astype(jnp.int32), *kv.token_rows())
    if variant == "Ampere":
        out, log_total = mosaic_ampere.attend_splits(*arrays, walk, stages)
    else:
        out, log_total = mosaic_hopper.attend_splits(*arrays, walk, stages, interpret)
    out = splits.merge(out[:, :, :, :group], log_total[:, :, :, :group])
    return out.reshape(q.shape).astype(q.dtype)


def _variant(interpret: bool) -> str:
    # The interpreter has neither cp.async nor mma.sync, so that Hopper's kernel alone can be interpreted.
    capability = mosaic_call.HOPPER if interpret else mosaic_call.compute_capability()
    if capability == mosaic_call.HOPPER:
        return "Hopper"
    if capability < mosaic_call.AMPERE:
        raise NotImplementedError(
            f"implementation='mosaic_gpu' needs compute capability 8.0; this GPU has {capability}"
        )
    if not hasattr(plgpu, "store"):
        raise NotImplementedError("implementation='mosaic_gpu' needs JAX 0.12 on GPUs other than Hopper")
    return "Ampere"


def _sizes(
    tuning: DecodeTuning | None, variant: str, num_rows: int, table_width: int, kv: KVPages, rule: ScoreRule
) -> tuple[Walk, int]:
    tuning = tuning or DecodeTuning()
    block, stages = checked_sizes(variant, tuning.block_tokens, tuning.num_stages, kv.head_dim)
    chosen = tuning.splits or splits.default_splits(num_rows * kv.num_kv_heads, table_width * kv.page_size)
    return Walk(rule, kv.page_size, kv.num_slots, block, chosen), stages


def checked_sizes(variant: str, block_tokens: int | None, num_stages: int | None, head_dim: int) -> tuple[int, int]:
    """Tokens a block and stages of the ring, or ValueError when they do not fit into shared memory."""
    ampere = variant == "Ampere"
    block = block_tokens or BLOCK_TOKENS
    stages = num_stages or (4 if head_dim <= 64 else 2) + ampere
    if block % 64 or stages < 2:
        raise ValueError(f"block_tokens={block} must be a multiple of 64 and num_stages={stages} at least 2")
    needed = (mosaic_ampere if ampere else mosaic_hopper).smem_bytes(head_dim, block, stages)
    available = mosaic_call.SMEM_BYTES[mosaic_call.AMPERE if ampere else mosaic_call.HOPPER]
    if needed > available:
        raise ValueError(
            f"block_tokens={block} and num_stages={stages} need {needed} bytes of shared memory a program; "
            f"there are {available}"
        )
    return block, stages
