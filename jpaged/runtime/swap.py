"""The host's copy of swapped-out pages, and the moves between it and the device's pool.

Lives here: HostPages.
Promises: bytes come back as they went, scales included; a move touches the pages it names and no others; the pool is
donated to the program that writes it.
Must not know: whose pages they are, when they move.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jpaged.core.output import PageSwap
from jpaged.runtime.programs import ProgramTable
from pallas_kernels import KVPages

PAGES_TOGETHER = 16
"""Pages that one program moves; a longer list takes several calls of the same program."""


class HostPages:
    """`num_pages` pages in host memory, shaped like the pool's; ids count from 1, as the core counts them."""

    def __init__(self, kv_pages: KVPages, num_pages: int, programs: ProgramTable) -> None:
        self._programs = programs
        # Page by page, each with all its layers: a move is one contiguous block a page. A pool has at most 4 arrays.
        self._arrays = jax.tree.map(lambda a: np.empty(_paged(a, num_pages + 1), a.dtype), kv_pages)
        self._read = jax.jit(read_pages)
        self._write = jax.jit(write_pages, donate_argnums=(0,))

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that it takes."""
        return sum(array.nbytes for array in jax.tree.leaves(self._arrays))

    def take(self, kv_pages: KVPages, swaps: tuple[PageSwap, ...]) -> None:
        """Copy device pages to the host; returns when they are there."""
        program = self.read_program(kv_pages)
        for part, device, count in _parts(swaps, "device"):
            blocks = jax.device_get(program(kv_pages, jax.device_put(device)))
            hosts = [swap.host for swap in part]
            for array, block in zip(jax.tree.leaves(self._arrays), jax.tree.leaves(blocks), strict=True):
                array[hosts] = block[:count]

    def give(self, kv_pages: KVPages, swaps: tuple[PageSwap, ...]) -> KVPages:
        """The pool with host pages copied into device pages; the pool given is donated."""
        program = self.write_program(kv_pages)
        for part, device, count in _parts(swaps, "device", padding=kv_pages.num_pages):
            hosts = [swap.host for swap in part] + [part[0].host] * (PAGES_TOGETHER - count)
            # Fancy indexing makes a fresh buffer: the transfer may alias it.
            blocks = jax.tree.map(operator.itemgetter(hosts), self._arrays)
            kv_pages = program(kv_pages, *jax.device_put((device, blocks)))
        return kv_pages

    def read_program(self, kv_pages: KVPages) -> Callable[..., Any]:
        """The program that gathers pages."""
        pages = jax.ShapeDtypeStruct((PAGES_TOGETHER,), jnp.int32)
        return self._programs.get("swap_out", lambda: self._read.lower(kv_pages, pages))

    def write_program(self, kv_pages: KVPages) -> Callable[..., Any]:
        """The program that scatters pages."""

        def lower() -> Any:
            pages = jax.ShapeDtypeStruct((PAGES_TOGETHER,), jnp.int32)
            blocks = jax.tree.map(lambda a: jax.ShapeDtypeStruct(_paged(a, PAGES_TOGETHER), a.dtype), kv_pages)
            return self._write.lower(kv_pages, pages, blocks)

        return self._programs.get("swap_in", lower)


def read_pages(kv_pages: KVPages, pages: jax.Array) -> KVPages:
    """The contents of `pages`, page by page, every layer of each."""
    return jax.tree.map(lambda a: jnp.moveaxis(a[:, pages], 1, 0), kv_pages)


def write_pages(kv_pages: KVPages, pages: jax.Array, blocks: KVPages) -> KVPages:
    """The pool with `blocks` in `pages`; ids past the pool are padding and are dropped."""
    return jax.tree.map(lambda a, block: a.at[:, pages].set(jnp.moveaxis(block, 0, 1), mode="drop"), kv_pages, blocks)


def _paged(array: Any, num_pages: int) -> tuple[int, ...]:
    """The shape of `num_pages` pages of a pool's array `[L, P, ...]`, page by page."""
    return (num_pages, array.shape[0], *array.shape[2:])


def _parts(swaps: tuple[PageSwap, ...], side: str, padding: int = 0) -> Any:
    """The swaps in lots of PAGES_TOGETHER: the lot, its ids on `side` padded to that length, how many are real."""
    for first in range(0, len(swaps), PAGES_TOGETHER):
        part = swaps[first : first + PAGES_TOGETHER]
        ids = np.full(PAGES_TOGETHER, padding, np.int32)
        ids[: len(part)] = [getattr(swap, side) for swap in part]
        yield part, ids, len(part)
