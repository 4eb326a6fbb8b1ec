"""The host's copy of swapped-out pages, and the moves between it and the device's pool.

Lives here: HostPages.
Promises: bytes come back as they went, scales included; a move touches the pages it names and no others; the pool is
donated to the program that writes it. What is kept lies in pinned host memory, which the device reads by itself.
Must not know: whose pages they are, when they move.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jpaged.config.engine import ParallelConfig
from jpaged.core.scheduling.plan import PageSwap
from jpaged.runtime.mesh import EVERYWHERE, DeviceMesh
from jpaged.runtime.programs import ProgramTable
from models.partition import PAGE_SPEC, POOL_SPEC
from pallas_kernels import KVPages

PAGES_TOGETHER = 16
"""Pages that one program moves; a longer list takes several calls of the same program."""


class HostPages:
    """Pages in host memory by their host id. The core gives out the ids, so it bounds how many there are."""

    def __init__(self, kv_pages: KVPages, programs: ProgramTable, mesh: DeviceMesh | None = None) -> None:
        self._mesh = mesh or DeviceMesh(ParallelConfig(), list(kv_pages.k.devices()))
        self._device, pinned = self._mesh.page_shardings()
        self._programs = programs
        self._kept: dict[int, KVPages] = {}
        args = (POOL_SPEC, EVERYWHERE)
        self._read = self._mesh.jit(read_pages, args, PAGE_SPEC, out_shardings=pinned)
        self._write = self._mesh.jit(write_pages, (*args, PAGE_SPEC), POOL_SPEC, donate_argnums=(0,))

    def take(self, kv_pages: KVPages, swaps: tuple[PageSwap, ...]) -> None:
        """Copy device pages to the host, ahead of whatever is dispatched to the device later."""
        program = self.read_program(kv_pages)
        for part in _parts(swaps):
            blocks = program(kv_pages, self._mesh.put(_device_ids(part, padding=0)))
            self._kept.update(zip((swap.host for swap in part), blocks, strict=False))

    def give(self, kv_pages: KVPages, swaps: tuple[PageSwap, ...]) -> KVPages:
        """The pool with host pages copied into device pages; they are forgotten here, and the pool given is donated."""
        program = self.write_program(kv_pages)
        for part in _parts(swaps):
            blocks = [self._kept.pop(swap.host) for swap in part]
            blocks += [blocks[0]] * (PAGES_TOGETHER - len(part))
            ids = self._mesh.put(_device_ids(part, padding=kv_pages.num_pages))
            kv_pages = program(kv_pages, ids, jax.device_put(tuple(blocks), self._device))
        return kv_pages

    def read_program(self, kv_pages: KVPages) -> Callable[..., Any]:
        """The program that gathers pages into host memory."""
        pages = self._mesh.shape((PAGES_TOGETHER,))
        return self._programs.get("swap_out", lambda: self._read.lower(kv_pages, pages))

    def write_program(self, kv_pages: KVPages) -> Callable[..., Any]:
        """The program that scatters pages into the pool."""

        def lower() -> Any:
            pages = self._mesh.shape((PAGES_TOGETHER,))
            at = self._device if self._mesh.shards > 1 else None
            page = jax.tree.map(
                lambda a: jax.ShapeDtypeStruct((a.shape[0], *a.shape[2:]), a.dtype, sharding=at), kv_pages
            )
            return self._write.lower(kv_pages, pages, (page,) * PAGES_TOGETHER)

        return self._programs.get("swap_in", lower)


def read_pages(kv_pages: KVPages, pages: jax.Array) -> tuple[KVPages, ...]:
    """The contents of each of PAGES_TOGETHER pages, all its layers together."""
    return tuple(jax.tree.map(lambda a, i=i: a[:, pages[i]], kv_pages) for i in range(PAGES_TOGETHER))


def write_pages(kv_pages: KVPages, pages: jax.Array, blocks: tuple[KVPages, ...]) -> KVPages:
    """The pool with `blocks` in `pages`; ids past the pool are padding and are dropped."""
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts, axis=1), *blocks)
    return jax.tree.map(lambda a, block: a.at[:, pages].set(block, mode="drop"), kv_pages, stacked)


def _parts(swaps: tuple[PageSwap, ...]) -> Iterator[tuple[PageSwap, ...]]:
    """The swaps in lots of at most PAGES_TOGETHER."""
    for first in range(0, len(swaps), PAGES_TOGETHER):
        yield swaps[first : first + PAGES_TOGETHER]


def _device_ids(part: tuple[PageSwap, ...], padding: int) -> np.ndarray:
    ids = np.full(PAGES_TOGETHER, padding, np.int32)
    ids[: len(part)] = [swap.device for swap in part]
    return ids
