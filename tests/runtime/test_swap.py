"""Pages go to the host and come back as they were, into other pages of the device, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jpaged.core.plan import MoveKind, PageMove
from jpaged.runtime.page_mover import PAGES_TOGETHER, PageMover
from jpaged.runtime.programs import ProgramTable
from pallas_kernels import KVPages, allocate

LAYERS, PAGES, PAGE_SIZE, HEADS, DIM = 3, 53, 4, 5, 8


@pytest.fixture(params=["float32", "bfloat16", "int8"])
def pool(request) -> KVPages:
    empty = allocate(LAYERS, PAGES, PAGE_SIZE, HEADS, DIM, jnp.dtype(request.param))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: jnp.asarray(rng.integers(-100, 100, a.shape), a.dtype), empty)


def page(pool: KVPages, index: int) -> list[np.ndarray]:
    return [np.asarray(array[:, index], np.float32) for array in jax.tree.leaves(pool)]


@pytest.mark.parametrize("count", [1, PAGES_TOGETHER, PAGES_TOGETHER + 3])
def test_pages_come_back_into_other_pages_byte_for_byte_and_no_other_changes(pool, count):
    host = PageMover(pool, ProgramTable())
    before = [page(pool, i) for i in range(PAGES)]
    out = tuple(PageMove(MoveKind.SWAP_OUT, 1 + i, 100 - i) for i in range(count))
    host.run(pool, out)
    # The pages that left are overwritten before the others come back.
    pool = jax.tree.map(lambda a: a.at[:, 1 : 1 + count].set(7), pool)
    back = tuple(PageMove(MoveKind.SWAP_IN, move.target, PAGES - 1 - i) for i, move in enumerate(out))
    after = host.run(pool, back)
    for i in range(PAGES):
        source = PAGES - 1 - i + 1 if i >= PAGES - count else i
        want = before[source] if source != i or i > count or i == 0 else [np.full_like(a, 7) for a in before[i]]
        for got, expected in zip(page(after, i), want, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_what_is_kept_lies_in_pinned_host_memory_and_is_forgotten_once_it_is_back(pool):
    host = PageMover(pool, ProgramTable())
    host.run(pool, (PageMove(MoveKind.SWAP_OUT, 3, 1), PageMove(MoveKind.SWAP_OUT, 4, 2)))
    kinds = {array.sharding.memory_kind for array in jax.tree.leaves(host._kept)}
    assert kinds == {"pinned_host"}
    host.run(pool, (PageMove(MoveKind.SWAP_IN, 2, 9),))
    assert set(host._kept) == {1}


def test_a_move_of_the_pool_is_in_place_and_makes_no_hidden_transfer(pool):
    programs = ProgramTable()
    host = PageMover(pool, programs)
    with jax.transfer_guard("disallow"):
        host.run(pool, (PageMove(MoveKind.SWAP_OUT, 3, 1),))
        after = host.run(pool, (PageMove(MoveKind.SWAP_IN, 1, 9),))
    assert pool.k.is_deleted()
    assert programs.read(lambda p: p.memory_analysis().alias_size_in_bytes)["swap_in"] >= after.nbytes
