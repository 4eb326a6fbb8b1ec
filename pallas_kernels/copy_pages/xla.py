"""Page copies as one gather and one scatter for the keys, and the same for the values.

Lives here: the path for the CPU, correct on every platform.
Promises: in place under donation; temporary memory is that of the copied pages.
Must not know: why a page is copied.
"""

from jaxtyping import Array, Int

from pallas_kernels.kv_pages import KVPages


def copy_pages(kv: KVPages, src: Int[Array, " R"], dst: Int[Array, " R"]) -> KVPages:
    """The pool with each source page copied over its target."""
    k_rows, v_rows = kv.page_rows()
    return kv.replace_rows(
        k_rows.at[:, dst].set(k_rows[:, src], mode="drop"),
        v_rows.at[:, dst].set(v_rows[:, src], mode="drop"),
    )
