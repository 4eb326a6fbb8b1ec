"""Every kernel with the shapes that it is compiled for.

Lives here: CASES: a name, the function, its arguments as shapes, and what it may use.
Promises: pools of 1 GiB and more, so that a copy of one cannot be overlooked; layers are traced.
Must not know: targets, how anything is compiled.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import KVPages, copy_pages, paged_attention, ragged_paged_attention, write_kv
from pallas_kernels.quantised import is_quantised

INT = jnp.int32
ROWS, TOKENS, COLUMNS, LAYERS = 32, 512, 128, 16


@dataclass(frozen=True)
class Case:
    """One program to compile. `launches`: how many thunks it may have; `targets`: where it is compiled."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    pool: KVPages
    launches: int
    in_place: bool = False
    targets: tuple[str, ...] = ("A100-40", "A100-80", "H100", "H200")


def shaped(*shape: int, dtype: Any = INT) -> jax.ShapeDtypeStruct:
    """An array that has a shape and no contents."""
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def bytes_of(tree: Any) -> int:
    """Bytes of all arrays of a tree of shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def pool(num_kv_heads: int, head_dim: int, dtype: Any, page_size: int = 16, layers: int = LAYERS) -> KVPages:
    """A pool of 1 GiB of keys and as many values."""
    token = layers * num_kv_heads * head_dim * jnp.dtype(dtype).itemsize
    shape = (layers, 2**30 // (token * page_size) + 1, page_size, num_kv_heads, head_dim)
    pages = shaped(*shape, dtype=dtype)
    scale = shaped(*shape[:-1], dtype=jnp.float32) if is_quantised(dtype) else None
    return KVPages(pages, pages, scale, scale)


MODELS = {"smollm2": (9, 3, 64), "opt-13b": (40, 40, 128), "llama-3-8b": (32, 8, 128), "head-80": (32, 32, 80)}
DTYPES = {
    "bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32, "int8": jnp.int8,
    "fp8-e4m3": jnp.float8_e4m3fn, "fp8-e5m2": jnp.float8_e5m2,
}  # fmt: skip
OPTIONS = {"plain": {}, "window+cap": {"window": 1024, "soft_cap": 30.0}}


def decode(model: str, dtype: str, implementation: str, *, page_size: int = 16, options: str = "plain", **how) -> Case:
    """Decode attention of 32 rows."""
    heads, kv_heads, head_dim = MODELS[model]
    kv = pool(kv_heads, head_dim, DTYPES[dtype], page_size)
    q = shaped(ROWS, heads, head_dim, dtype=jnp.bfloat16 if is_quantised(DTYPES[dtype]) else DTYPES[dtype])

    def run(q, kv, tables, lengths, layer):
        how = {"implementation": implementation, **OPTIONS[options]}
        return paged_attention(q, kv, tables, lengths, layer=layer, **how)

    name = f"decode {implementation} {model} {dtype} page {page_size} {options}"
    args = (q, kv, shaped(ROWS, COLUMNS * 16 // page_size), shaped(ROWS), shaped())
    return Case(name, run, args, kv, launches=6, **how)


def ragged(model: str, dtype: str, implementation: str, *, page_size: int = 16, options: str = "plain", **how) -> Case:
    """Ragged attention of 512 packed queries of 32 rows."""
    heads, kv_heads, head_dim = MODELS[model]
    kv = pool(kv_heads, head_dim, DTYPES[dtype], page_size)
    q = shaped(TOKENS, heads, head_dim, dtype=jnp.bfloat16 if is_quantised(DTYPES[dtype]) else DTYPES[dtype])

    def run(q, kv, tables, lengths, starts, layer):
        how = {"implementation": implementation, **OPTIONS[options]}
        return ragged_paged_attention(q, kv, tables, lengths, starts, layer=layer, **how)

    name = f"ragged {implementation} {model} {dtype} page {page_size} {options}"
    args = (q, kv, shaped(ROWS, COLUMNS * 16 // page_size), shaped(ROWS), shaped(ROWS + 1), shaped())
    return Case(name, run, args, kv, launches=16, **how)


def write(model: str, dtype: str) -> Case:
    """The keys and values of 32 tokens into their slots."""
    _, kv_heads, head_dim = MODELS[model]
    kv = pool(kv_heads, head_dim, DTYPES[dtype])
    new = shaped(ROWS, kv_heads, head_dim, dtype=jnp.bfloat16)

    def run(kv, k, v, slots, layer):
        return write_kv(kv, k, v, slots, layer=layer, implementation="triton")

    args = (kv, new, new, shaped(ROWS), shaped())
    return Case(f"write_kv triton {model} {dtype}", run, args, kv, launches=8, in_place=True)


def copy(model: str, dtype: str) -> Case:
    """32 pages over 32 others in every layer."""
    _, kv_heads, head_dim = MODELS[model]
    kv = pool(kv_heads, head_dim, DTYPES[dtype])

    def run(kv, src, dst):
        return copy_pages(kv, src, dst, implementation="triton")

    args = (kv, shaped(ROWS), shaped(ROWS))
    return Case(f"copy_pages triton {model} {dtype}", run, args, kv, launches=4, in_place=True)


def _all() -> Iterator[Case]:
    hopper = {"targets": ("H100", "H200")}
    for attention in (decode, ragged):
        yield from (attention(model, "bf16", "triton") for model in MODELS)
        yield from (attention("llama-3-8b", dtype, "triton") for dtype in ("f16", "f32", "int8", "fp8-e5m2"))
        yield attention("llama-3-8b", "fp8-e4m3", "triton", **hopper)
        yield attention("llama-3-8b", "bf16", "triton", options="window+cap")
        yield attention("smollm2", "bf16", "triton", page_size=1)
        yield attention("smollm2", "bf16", "triton", page_size=256)
    for model in ("smollm2", "opt-13b", "llama-3-8b"):
        yield decode(model, "bf16", "mosaic_gpu", **hopper)
        yield ragged(model, "bf16", "mosaic_gpu", **hopper)
    yield decode("smollm2", "f16", "mosaic_gpu", options="window+cap", page_size=256, **hopper)
    yield decode("llama-3-8b", "f16", "mosaic_gpu", options="window+cap", page_size=48, **hopper)
    yield decode("smollm2", "bf16", "mosaic_gpu", page_size=8, **hopper)
    yield ragged("llama-3-8b", "f16", "mosaic_gpu", options="window+cap", page_size=8, **hopper)
    for dtype in DTYPES:
        yield write("llama-3-8b", dtype)
        yield copy("llama-3-8b", dtype)


CASES = list(_all())
