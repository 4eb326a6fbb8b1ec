"""Faults of group D: what a prefix hit may give, and to whom."""

import pytest
from rig import Rig

from jpaged.core.cache.prefix_cache import page_hash, root_hash

X = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


def test_d1_a_prompt_that_is_cached_whole_leaves_one_token_to_compute() -> None:
    rig = Rig(8, 4)
    first = rig.add(X[:8], 6)
    rig.run()
    second = rig.add(X[:8], 6)
    rig.run()
    assert rig.metrics[second].num_cached_tokens == 4
    assert rig.ids(first) == rig.ids(second)
    third = rig.add([*X[:8], *rig.ids(second)[:5]], 1)
    rig.run()
    assert rig.metrics[third].num_cached_tokens == 12, "the chain goes on from the page that was computed twice"


@pytest.mark.parametrize("prompt_len", [9, 3, 1])
def test_d2_prompt_logprobs_are_whole_and_equal_with_and_without_a_cached_prefix(prompt_len: int) -> None:
    rig = Rig(8, 4)
    rig.add(X[:9], 2)
    rig.run()
    for _ in range(2):
        request_id = rig.add(X[:prompt_len], 2, prompt_logprobs=1)
        rig.run()  # compared with the oracle
        assert rig.metrics[request_id].num_cached_tokens == 0
        assert len(rig.prompt_logprobs[request_id]) == prompt_len - 1
    after = rig.add(X[:9], 2)
    rig.run()
    assert rig.metrics[after].num_cached_tokens == 8


def test_d2_prompt_logprobs_come_with_several_sequences_and_a_preemption() -> None:
    rig = Rig(10, 4)
    rig.add(X[:8], 24)
    request_id = rig.add(X[2:9], 8, n=3, prompt_logprobs=1)
    rig.run()
    assert rig.metrics[request_id].num_preemptions > 0


def test_d4_another_salt_is_another_prefix() -> None:
    rig = Rig(16, 4)
    hits = []
    for salt in ("a", None, "b", "", "\ud800", "a", None, "b", "", "\ud800"):
        request_id = rig.add(X[:9], 1, salt=salt)
        rig.run()
        hits.append(rig.metrics[request_id].num_cached_tokens)
    assert hits == [0] * 5 + [8] * 5


def test_d4_a_salt_that_is_no_text_is_refused() -> None:
    rig = Rig(8, 4)
    with pytest.raises(ValueError, match="cache_salt=5"):
        rig.add(X[:9], 1, salt=5)  # pyright: ignore[reportArgumentType]


def test_d6_a_prefix_is_named_by_256_bits_over_all_that_came_before() -> None:
    assert hash((-1,)) == hash((-2,)), "a ready collision of Python's own hash"
    assert page_hash(b"", [-1]) != page_hash(b"", [-2])
    page = page_hash(root_hash(None), [1, 2])
    assert len(page) == 32
    assert len({page, page_hash(page, [1, 2]), page_hash(root_hash("a"), [1, 2]), page_hash(b"", [2, 1])}) == 4


def test_d6_how_tokens_are_drawn_is_no_part_of_a_prefix() -> None:
    rig = Rig(8, 4)
    rig.add(X[:9], 2)
    rig.run()
    request_id = rig.add(X[:9], 2, temperature=1.0, seed=9, logprobs=2, stop_token_ids=[1])
    rig.run()
    assert rig.metrics[request_id].num_cached_tokens == 8


def test_d8_the_last_sampled_token_has_no_kv_and_its_page_is_not_found() -> None:
    rig = Rig(8, 4)
    first = rig.add(X[:5], 3)
    rig.run()
    second = rig.add([*X[:5], *rig.ids(first), 1], 2)
    rig.run()
    assert rig.metrics[second].num_cached_tokens == 4


@pytest.mark.parametrize(("prompt_len", "full"), [(4, 1), (8, 2), (12, 3)])
def test_d9_a_chunk_that_ends_on_a_page_boundary_indexes_its_page_and_the_output_takes_a_new_one(
    prompt_len: int, full: int
) -> None:
    rig = Rig(8, 4, budget=8, threshold=4)
    rig.add(X[:prompt_len], 3)
    rig.step(full)
    assert rig.cache.prefix_cache is not None and len(rig.cache.prefix_cache) == full
    assert rig.cache.num_used == full
    rig.step()
    assert rig.cache.num_used == full + 1
    rig.run()
    rig.check_reset()


def test_d11_a_prefix_shorter_than_a_page_never_hits_and_the_stats_say_the_page_size() -> None:
    rig = Rig(8, 16)
    for tail in (1, 2):
        rig.add([*X[:10], tail], 2)
        rig.run()
    assert rig.stats["prefix_hit_tokens"] == 0 and rig.stats["page_size"] == 16


def test_without_prefix_caching_nothing_is_found_or_kept() -> None:
    rig = Rig(8, 4, prefix_caching=False)
    for _ in range(2):
        rig.add(X[:9], 2)
        rig.run()
    assert rig.stats["prefix_hit_tokens"] == 0 and rig.cache.pool.num_free == 8


def test_prefixes_of_running_requests_are_shared_while_they_run() -> None:
    rig = Rig(8, 4)
    rig.add(X[:9], 8)
    rig.step()
    second = rig.add(X[:9], 8)
    rig.step()
    assert rig.metrics[second].num_cached_tokens == 8 and rig.cache.num_used == 4
    rig.run()
