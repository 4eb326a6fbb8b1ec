"""Page copies as one gather and one scatter for each array of the pool.

The path for the CPU, correct on every platform. In place under donation; temporary memory is that of the copied pages.
"""

import jax
from jaxtyping import Array, Int

from pallas_kernels.kv_pages import KVPages
from pallas_kernels.support import Support

SUPPORT = Support(hardware="any", proof="tested")


def copy_pages(kv: KVPages, src: Int[Array, " R"], dst: Int[Array, " R"]) -> KVPages:
    """The pool with each source page copied over its target."""
    pool = kv.by_page().as_bytes()
    copied = jax.tree.map(lambda pages: pages.at[:, dst].set(pages[:, src], mode="drop"), pool)
    return copied.shaped_like(kv)
