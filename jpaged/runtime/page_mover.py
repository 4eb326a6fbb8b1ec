"""Pages on the move: out to the host's memory and back in, from page to page, from one pool into another.

Bytes arrive as they were, scales included; nothing but the named pages is touched, and a pool is donated to the program
that writes it. What the host keeps lies in pinned memory, which the device reads by itself.
"""

import functools
from collections import abc
from collections.abc import Callable
from itertools import batched, groupby
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jpaged.config.options import ParallelConfig
from jpaged.core.plan import MoveKind, PageMove, moves_of
from jpaged.runtime.mesh import EVERYWHERE, DeviceMesh
from jpaged.runtime.programs import ProgramTable
from jpaged.runtime.step import copy_step
from models.partition import PAGE_SPEC, POOL_SPEC
from pallas_kernels import KVPages

PAGES_TOGETHER = 16
"""Pages that one program reads or writes; a longer list takes several calls of the same program."""


class PageMover:
    """Makes moves in a pool like `kv_pages`, and keeps pages in host memory by their host id.

    The core gives out the ids, so it bounds how many there are. One program makes `num_copies` copies.
    """

    def __init__(
        self,
        kv_pages: KVPages,
        programs: ProgramTable,
        mesh: DeviceMesh | None = None,
        *,
        num_copies: int = PAGES_TOGETHER,
        copy_implementation: str | None = None,
    ) -> None:
        self._mesh = mesh or DeviceMesh(ParallelConfig(), list(kv_pages.k.devices()))
        self._device, pinned = self._mesh.page_shardings()
        self._programs = programs
        self._num_copies = num_copies
        self._kept: dict[int, KVPages] = {}
        args, donated = (POOL_SPEC, EVERYWHERE), {"donate_argnums": (0,)}
        copy = functools.partial(copy_step, implementation=copy_implementation)
        self._gather = jax.jit(read_pages)
        self._read = self._mesh.jit(read_pages, args, PAGE_SPEC, out_shardings=pinned)
        self._write = self._mesh.jit(write_pages, (*args, PAGE_SPEC), POOL_SPEC, **donated)
        self._copy = self._mesh.jit(copy, args, POOL_SPEC, **donated)

    def run(self, kv_pages: KVPages, moves: abc.Sequence[PageMove]) -> KVPages:
        """The pool after the moves of a plan, which come in their order; the one given is donated."""
        copies = moves_of(moves, MoveKind.COPY)
        assert not {c.source for c in copies} & {c.target for c in copies}, "a page is source and target of copies"
        for kind, together in groupby(moves, key=lambda move: move.kind):
            for lot in batched(together, self._num_copies if kind is MoveKind.COPY else PAGES_TOGETHER):
                sources, targets = [move.source for move in lot], [move.target for move in lot]
                if kind is MoveKind.SWAP_OUT:
                    blocks = self._read_program(kv_pages)(kv_pages, self._ids(sources, padding=0))
                    self._kept.update(zip(targets, blocks, strict=False))
                elif kind is MoveKind.SWAP_IN:
                    kv_pages = self.write(kv_pages, targets, [self._kept.pop(source) for source in sources])
                else:
                    kv_pages = self._copy_pages(kv_pages, sources, targets)
        return kv_pages

    def read(self, kv_pages: KVPages, pages: list[int]) -> tuple[KVPages, ...]:
        """Up to PAGES_TOGETHER pages, each with all its layers, where the pool is."""
        return self._gather(kv_pages, self._ids(pages, padding=0))[: len(pages)]

    def write(self, kv_pages: KVPages, pages: list[int], blocks: abc.Sequence[KVPages]) -> KVPages:
        """The pool with `blocks`, from anywhere, in up to PAGES_TOGETHER pages; the pool given is donated."""
        blocks = (*blocks, *(blocks[0],) * (PAGES_TOGETHER - len(blocks)))
        ids = self._ids(pages, padding=kv_pages.num_pages)
        return self._write_program(kv_pages)(kv_pages, ids, jax.device_put(blocks, self._device))

    def compile(self, kv_pages: KVPages, *, swaps: bool) -> None:
        """Compile the programs that plans may need, `swaps`: those that swap among them."""
        self._copy_program(kv_pages)
        if swaps:
            self._read_program(kv_pages)
            self._write_program(kv_pages)

    def _copy_pages(self, kv_pages: KVPages, sources: list[int], targets: list[int]) -> KVPages:
        pairs = np.zeros((2, self._num_copies), np.int32)
        pairs[:, : len(sources)] = sources, targets
        return self._copy_program(kv_pages)(kv_pages, self._mesh.put(pairs))

    def _ids(self, pages: list[int], padding: int) -> Any:
        ids = np.full(PAGES_TOGETHER, padding, np.int32)
        ids[: len(pages)] = pages
        return self._mesh.put(ids)

    def _copy_program(self, kv_pages: KVPages) -> Callable[..., Any]:
        pairs = self._mesh.shape((2, self._num_copies))
        return self._programs.get("copy_pages", lambda: self._copy.lower(kv_pages, pairs))

    def _read_program(self, kv_pages: KVPages) -> Callable[..., Any]:
        pages = self._mesh.shape((PAGES_TOGETHER,))
        return self._programs.get("swap_out", lambda: self._read.lower(kv_pages, pages))

    def _write_program(self, kv_pages: KVPages) -> Callable[..., Any]:
        def lower() -> Any:
            at = self._device if self._mesh.shards > 1 else None
            page = jax.tree.map(
                lambda a: jax.ShapeDtypeStruct((a.shape[0], *a.shape[2:]), a.dtype, sharding=at), kv_pages
            )
            return self._write.lower(kv_pages, self._mesh.shape((PAGES_TOGETHER,)), (page,) * PAGES_TOGETHER)

        return self._programs.get("swap_in", lower)


class HasPool(Protocol):
    """Whoever keeps a pool and lets it be replaced: a ModelRunner."""

    kv_pages: KVPages
    mover: PageMover


class PoolTransfer:
    """Moves pages from the pool of `source` into that of `target` (the PageMover role of fleet/disaggregation.py).

    The pools may be on other devices, of other sizes. Raises ValueError if a page of the one is no page of the other.
    """

    def __init__(self, source: HasPool, target: HasPool) -> None:
        for name in KVPages._fields:
            here, there = (_page_of(getattr(side.kv_pages, name)) for side in (source, target))
            if here != there:
                raise ValueError(
                    f"a page of the prefill pool has {name} {here}, of the decode pool {there}; give both engines the "
                    "same model, page_size and kv_cache_dtype"
                )
        self._source = source
        self._target = target

    def move(self, moves: tuple[PageMove, ...]) -> None:
        """Copy each source page into its target. Returns when that is under way: what comes later waits for it."""
        source, target = self._source, self._target
        for lot in batched(moves, PAGES_TOGETHER):
            blocks = source.mover.read(source.kv_pages, [move.source for move in lot])
            target.kv_pages = target.mover.write(target.kv_pages, [move.target for move in lot], blocks)


def read_pages(kv_pages: KVPages, pages: jax.Array) -> tuple[KVPages, ...]:
    """The contents of each of PAGES_TOGETHER pages, all its layers together."""
    return tuple(jax.tree.map(lambda a, i=i: a[:, pages[i]], kv_pages) for i in range(PAGES_TOGETHER))


def write_pages(kv_pages: KVPages, pages: jax.Array, blocks: tuple[KVPages, ...]) -> KVPages:
    """The pool with `blocks` in `pages`; ids past the pool are padding and are dropped."""
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts, axis=1), *blocks)
    return jax.tree.map(lambda a, block: a.at[:, pages].set(block, mode="drop"), kv_pages, stacked)


def _page_of(array: Any) -> str | None:
    """Shape and dtype of one page of an array `[L, P, S, ...]`."""
    return None if array is None else f"{(array.shape[0], *array.shape[2:])} {array.dtype}"
