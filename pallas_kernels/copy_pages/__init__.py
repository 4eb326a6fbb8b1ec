"""Copying whole pages, in every layer.

A page's scales go with it. All sources are read before a target is written; in place when the pool is donated.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from pallas_kernels import dispatch
from pallas_kernels.kv_pages import KVPages, check_pool

__all__ = ["copy_pages"]


def copy_pages(
    kv: KVPages,
    src: Int[Array, " R"],
    dst: Int[Array, " R"],
    *,
    implementation: str | None = None,
    interpret: bool = False,
) -> KVPages:
    """The pool with page `src[r]` copied over page `dst[r]`, scales too, in every layer; a padding pair is (0, 0).

    The caller guarantees that page ids lie in `[0, P)`, that no target occurs twice and that no target is another
    pair's source. Under donation the pool is updated in place.

    Raises ValueError for shapes that do not fit together. Source: copy-on-write, section 4.4 (Kwon et al., SOSP 2023).
    """
    check_pool(kv)
    if src.ndim != 1 or src.shape != dst.shape:
        raise ValueError(f"src and dst must be [R] and equally long; got {list(src.shape)} and {list(dst.shape)}")
    if not all(jnp.issubdtype(x.dtype, jnp.integer) for x in (src, dst)):
        raise ValueError(f"src and dst must be integers; got {src.dtype} and {dst.dtype}")
    copy = dispatch.load("copy_pages", implementation, interpret)
    return copy(kv, src, dst)
