"""Faults of group A: who holds a page, who may write it, who may take it."""

import contextlib
import random

import pytest
from rig import Rig

from jpaged.core.cache.page_pool import PagePool
from jpaged.core.plan import SchedulerOutput

X = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
Y = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5]
Z = [1, 4, 1, 4, 2, 1, 3, 5, 6, 2, 3, 7, 3, 0, 9, 5]


@pytest.mark.parametrize(("num_pages", "prompt_len", "max_tokens"), [(8, 13, 4), (16, 6, 20)])
def test_a1_forked_sequences_give_each_page_back_once(num_pages: int, prompt_len: int, max_tokens: int) -> None:
    rig = Rig(num_pages, 4)
    rig.add(X[:prompt_len], max_tokens, n=2)
    rig.run()
    assert rig.stats["num_page_copies"] == 1
    rig.check_reset()


def test_a2_a_page_is_freed_once_or_the_pool_protests() -> None:
    pool = PagePool(3)
    page = pool.allocate()
    pool.drop(page)
    pool.free(page)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(page)
    with pytest.raises(AssertionError, match="nobody who holds it"):
        pool.drop(page)
    assert pool.num_free == 3
    assert sorted(pool.allocate() for _ in range(3)) == [1, 2, 3]


def test_a2_a_held_page_cannot_be_freed_and_a_free_or_null_one_cannot_be_held() -> None:
    pool = PagePool(3)
    page = pool.allocate()
    with pytest.raises(AssertionError, match="while 1 hold it"):
        pool.free(page)
    for stranger in (0, 4, page % 3 + 1):
        with pytest.raises(AssertionError):
            pool.hold(stranger)


@pytest.mark.parametrize("overlap", [False, True])
def test_a3_one_short_request_leaves_every_page_free(overlap: bool) -> None:
    rig = Rig(8, 1, budget=8, threshold=4, overlap=overlap)
    rig.add(X[:5], 3)
    rig.run()
    rig.check_reset()


def test_a5_the_room_to_grow_is_counted_in_pages() -> None:
    rig = Rig(4, 4)
    old, new = rig.add(X[:8], 4), rig.add(Y[:8], 4)
    rig.step()
    wanted = [(group.sequences[0], 9) for group in rig.scheduler.running]
    assert rig.cache.pages_to_grow(wanted) == 2 and rig.cache.num_available == 0
    rig.run()
    assert rig.stats["num_preemptions_recompute"] == 1
    assert rig.metrics[old].num_preemptions == 0 and rig.metrics[new].num_preemptions == 1
    rig.check_reset()


def test_a6_a_shared_page_is_evictable_once() -> None:
    rig = Rig(8, 4)
    for tail in (X[9:12], Y[9:12]):
        rig.add([*Z[:9], *tail], 1)
        rig.run()
    assert rig.stats["prefix_hit_tokens"] == 8
    assert rig.cache.prefix_cache is not None
    assert rig.cache.prefix_cache.num_idle == 4 and rig.cache.pool.num_free == 4
    rig.check_reset()


@pytest.mark.parametrize("third", [Y[:9], [*X[:8], *Y[:2]]], ids=["other", "same prefix"])
def test_a7_two_equal_prompts_in_one_step_keep_their_own_pages(third: list[int]) -> None:
    rig = Rig(12, 4, max_num_seqs=2)
    rig.add(X[:8], 8)
    rig.add(X[:8], 6)
    rig.add(third, 8)
    rig.step()
    assert len(rig.executor.plans[0].rows) == 2
    rig.run()
    assert (rig.stats["prefix_hit_tokens"] > 0) == (third[:8] == X[:8])
    rig.check_reset()


def test_a9_a_shared_page_is_copied_before_the_first_write_that_divides_it() -> None:
    rig = Rig(6, 4)
    rig.add(X[:3], 3, n=2)
    rig.step()
    shared = rig.executor.rows[rig.executor.plans[0].rows[0].lane].pages[0]
    assert not rig.executor.plans[0].moves and rig.cache.pool.ref_count(shared) == 2
    rig.step()
    (copy,) = rig.executor.plans[1].moves
    assert copy.source == shared
    rig.run()
    assert rig.stats["num_page_copies"] == 1


def test_a10_a_page_in_use_is_not_evicted() -> None:
    rig = Rig(6, 4)
    first = rig.add(X[:9], 4)
    rig.step()
    held = list(rig.executor.rows[rig.executor.plans[0].rows[0].lane].pages)
    second = rig.add(Y[:13], 4)
    rig.step(2)
    assert not rig.ids(second) and len(rig.ids(first)) == 3, "the second waits"
    assert [rig.cache.pool.ref_count(page) for page in held] == [1, 1, 1]
    rig.run()
    assert rig.stats["num_preemptions_recompute"] == 0
    assert rig.stats["num_evictions"] > 0, "idle ones were, later"


def test_a11_an_admission_that_fails_changes_nothing_and_does_not_count_its_hits_as_room() -> None:
    rig = Rig(6, 4)
    rig.add(X[:8], 1)
    rig.run()
    rig.add(Y[:9], 4)
    rig.step()
    late = rig.add([*X[:8], *Z[:8]], 1)
    before = (rig.cache.pool.num_free, rig.cache.prefix_cache and rig.cache.prefix_cache.idle_pages)
    assert before[0] == 1 and before[1] is not None and len(before[1]) == 2
    rig.step(2)
    assert (rig.cache.pool.num_free, rig.cache.prefix_cache and rig.cache.prefix_cache.idle_pages) == before
    assert not rig.ids(late)
    rig.run()
    assert rig.metrics[late].num_cached_tokens == 8


def test_a12_a_page_that_no_step_has_written_is_never_found() -> None:
    rig = Rig(8, 4)

    def fail(plan: SchedulerOutput) -> None:
        raise RuntimeError("the device is on fire")

    check, rig.executor.before_execute = rig.executor.before_execute, fail
    rig.add(X[:8], 1, request_id="fails")
    with pytest.raises(RuntimeError, match="fire"):
        rig.engine.step()
    rig.executor.before_execute = check
    again = rig.add(X[:8], 3, request_id="again")
    rig.step()
    assert rig.metrics[again].num_cached_tokens == 0
    rig.tracks.pop(("fails", 0))
    rig.run()
    rig.check_reset()


def test_a13_an_evicted_prefix_is_a_miss() -> None:
    rig = Rig(3, 4)
    for prompt in (X[:9], Y[:9], X[:9]):
        request_id = rig.add(prompt, 2)
        rig.run()
        assert rig.metrics[request_id].num_cached_tokens == 0
    assert rig.stats["num_evictions"] >= 4
    rig.check_reset()


@pytest.mark.parametrize("seed", [162, 790, 908])
def test_a5_a_copy_is_counted_when_the_budget_lets_only_some_holders_of_a_page_write(seed: int) -> None:
    """Traffic found by a search: a sibling writes into the shared page of a full pool, another is out of budget."""
    draw = random.Random(seed)
    rows = draw.choice([3, 4, 5])
    rig = Rig(
        draw.choice([6, 7, 8, 9, 10]),
        4,
        max_num_seqs=rows,
        budget=rows + draw.choice([0, 1, 2]),
        threshold=draw.choice([None, 2, 3]),
        prefix_caching=False,
        preemption_mode="recompute",
    )
    for _ in range(4):
        prompt = [draw.randrange(16) for _ in range(draw.randint(1, 20))]
        with contextlib.suppress(ValueError):
            rig.add(prompt, draw.randint(2, 12), n=draw.choice([1, 1, 2, 3]))
        rig.step(draw.randint(0, 6))
    rig.run()
    assert rig.stats["num_page_copies"] > 0
    rig.check_reset()
