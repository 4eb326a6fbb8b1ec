"""Page copies, written to be read.

Lives here: the definition of what every other implementation must return.
Promises: exactly the target pages change, in every layer.
Must not know: speed.
"""

from jaxtyping import Array, Int

from pallas_kernels.kv_pages import KVPages


def copy_pages(kv: KVPages, src: Int[Array, " R"], dst: Int[Array, " R"]) -> KVPages:
    """The pool with each source page copied over its target."""
    pool = kv.with_layers()
    k = pool.k.at[:, dst].set(pool.k[:, src])
    v = pool.v.at[:, dst].set(pool.v[:, src])
    return kv.replace_rows(k, v)
