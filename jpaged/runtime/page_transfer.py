"""Pages from one device pool into another, by id.

Lives here: PoolTransfer (the PageMover role of fleet/disaggregation.py).
Promises: bytes arrive as they are, scales included; the pools may be on other devices, of other sizes; the target pool
is donated to the program that writes it, so nothing but the named pages is touched or copied.
Must not know: whose pages they are, when they move.
"""

from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from jpaged.core.requests.handoff import PageMove
from jpaged.runtime.swap import PAGES_TOGETHER, read_pages, write_pages
from pallas_kernels import KVPages


class HasPool(Protocol):
    """Whoever keeps a pool and lets it be replaced: a ModelRunner."""

    kv_pages: KVPages


class PoolTransfer:
    """Copies pages out of the pool of `source` into that of `target`, PAGES_TOGETHER at a time.

    Raises ValueError if a page of the one is not a page of the other.
    """

    def __init__(self, source: HasPool, target: HasPool) -> None:
        for name in KVPages._fields:
            here, there = (_page_of(getattr(side.kv_pages, name)) for side in (source, target))
            if here != there:
                raise ValueError(
                    f"a page of the prefill pool has {name} {here}, of the decode pool {there}; give both engines the "
                    "same model, page_size and kv_cache_dtype"
                )
        self.source = source
        self.target = target
        self._read = jax.jit(read_pages)
        self._write = jax.jit(write_pages, donate_argnums=(0,))

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all its layers and scales."""
        pool = self.source.kv_pages
        return pool.nbytes // pool.num_pages

    def move(self, moves: tuple[PageMove, ...]) -> None:
        """Copy each source page into its target. Returns when that is under way: what comes later waits for it."""
        source, target = self.source.kv_pages, self.target.kv_pages
        for first in range(0, len(moves), PAGES_TOGETHER):
            part = moves[first : first + PAGES_TOGETHER]
            taken = _ids([move.source for move in part], padding=0)
            given = _ids([move.target for move in part], padding=target.num_pages)
            blocks = self._read(source, jax.device_put(taken, _replicated(source.k)))
            blocks = jax.device_put(blocks, tuple(jax.tree.map(_page_sharding, target) for _ in blocks))
            target = self._write(target, jax.device_put(given, _replicated(target.k)), blocks)
            self.target.kv_pages = target


def _page_of(array: Any) -> str | None:
    """Shape and dtype of one page of an array `[L, P, S, ...]`."""
    return None if array is None else f"{(array.shape[0], *array.shape[2:])} {array.dtype}"


def _ids(pages: list[int], padding: int) -> np.ndarray:
    ids = np.full(PAGES_TOGETHER, padding, np.int32)
    ids[: len(pages)] = pages
    return ids


def _replicated(array: jax.Array) -> Sharding:
    sharding = array.sharding
    return NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else sharding


def _page_sharding(array: jax.Array) -> Sharding:
    """How a page of a pool is spread: as the pool is, without the axis of pages."""
    sharding = array.sharding
    if not isinstance(sharding, NamedSharding):
        return sharding
    spec = (*sharding.spec, *(None,) * (array.ndim - len(sharding.spec)))
    return NamedSharding(sharding.mesh, PartitionSpec(spec[0], *spec[2:]))
