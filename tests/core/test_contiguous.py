"""Runs of pages: who gets which, what merges, what is lost to rounding."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jpaged.core.cache.contiguous import BuddyAllocator, ContiguousAllocator, FirstFitAllocator


def test_the_papers_pool_is_carved_into_seven_regions_of_the_longest_request_and_a_rest() -> None:
    pool = BuddyAllocator(984, 128)
    assert {size: len(starts) for size, starts in pool._free.items() if starts} == {128: 7, 64: 1, 16: 1, 8: 1}
    assert pool.how_many(128, 100) == 7
    assert pool.how_many(65, 100) == 7
    assert pool.how_many(64, 100) == 15
    assert pool.how_many(5, 1000) == 984 // 8


def test_the_smallest_run_that_fits_is_split_and_its_lower_half_given() -> None:
    pool = BuddyAllocator(16, 16)
    assert [pool.allocate(3), pool.allocate(1), pool.allocate(8)] == [0, 4, 8]
    assert pool.num_free == 16 - 4 - 1 - 8
    assert pool.allocate(2) == 6


def test_of_free_runs_of_a_size_the_last_freed_is_given_first() -> None:
    pool = BuddyAllocator(64, 8)
    starts = [pool.allocate(8) for _ in range(8)]
    assert starts == [0, 8, 16, 24, 32, 40, 48, 56]
    pool.free(16)
    pool.free(48)
    assert [pool.allocate(8), pool.allocate(8)] == [48, 16]


def test_buddies_merge_when_both_are_whole_and_free() -> None:
    pool = BuddyAllocator(8, 8)
    runs = [pool.allocate(2) for _ in range(4)]
    for start in (runs[0], runs[2], runs[3]):
        pool.free(start)
    assert pool.how_many(4, 9) == 1
    assert pool.how_many(8, 9) == 0
    pool.free(runs[1])
    assert pool.how_many(8, 9) == 1


def test_first_fit_takes_the_lowest_gap_with_room() -> None:
    pool = FirstFitAllocator(10)
    starts = [pool.allocate(3), pool.allocate(2), pool.allocate(4)]
    assert starts == [0, 3, 5]
    pool.free(3)
    assert pool.how_many(3, 9) == 0
    assert pool.how_many(1, 9) == 3
    assert pool.allocate(1) == 3
    assert pool.allocate(1) == 4
    assert pool.num_free == 1


@pytest.mark.parametrize("make", [lambda: BuddyAllocator(53, 32), lambda: FirstFitAllocator(53)])
@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(1, 32), max_size=60))
def test_runs_never_overlap_and_all_come_back(make: object, seed: int, sizes: list[int]) -> None:
    pool: ContiguousAllocator = make()  # type: ignore[operator]
    rng, held = random.Random(seed), dict[int, int]()
    for size in sizes:
        if pool.how_many(size, 1):
            before = pool.how_many(size, 1000)
            start = pool.allocate(size)
            held[start] = size
            # What was promised of `before` runs still holds for one less.
            assert pool.how_many(size, 1000) == before - 1
        else:
            assert pool.size_of(size) > 1 or pool.num_free == 0
        if held and rng.random() < 0.4:
            start = rng.choice(list(held))
            pool.free(start)
            del held[start]
        pages = [page for start, size in held.items() for page in range(start, start + pool.size_of(size))]
        assert len(set(pages)) == len(pages)
        assert all(0 <= page < 53 for page in pages)
        assert pool.num_free == 53 - len(pages)
    for start in held:
        pool.free(start)
    assert pool.num_free == 53
    assert pool.how_many(32, 9) == 1
