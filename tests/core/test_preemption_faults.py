"""Faults of group C: preemption by recomputation changes no token, no log probability and no order."""

import pytest
from rig import Rig

from jpaged.core.errors import QueueFull

X = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
Y = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5]


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("overlap", [False, True])
def test_c1_a_replay_samples_nothing_and_changes_nothing(prefix_caching: bool, overlap: bool) -> None:
    seen = []
    for num_pages in (6, 64):
        rig = Rig(num_pages, 4, threshold=4, prefix_caching=prefix_caching, overlap=overlap, max_model_len=24)
        b, a = rig.add(Y[:9], 12), rig.add(X[:3], 12)
        rig.run()
        seen.append((rig.ids(a), rig.ids(b)))
        assert (rig.metrics[a].num_preemptions > 0) == (num_pages == 6)
        if not overlap:
            assert rig.stats["num_tokens_sampled"] == 24
        rig.check_reset()
    assert seen[0] == seen[1]


def test_c3_log_probabilities_and_tokens_come_once_each_across_a_preemption() -> None:
    rig = Rig(6, 4)
    rig.add(Y[:9], 12, logprobs=1, temperature=1.0, seed=5)
    late = rig.add(X[:3], 12, logprobs=1, temperature=1.0, seed=6, prompt_logprobs=1)
    rig.run()  # ids, log probabilities and their alignment are compared with the oracle
    assert rig.metrics[late].num_preemptions > 0
    track = rig.tracks[late, 0]
    assert len(track.logprobs) == len(track.token_ids) == 12 and None not in track.logprobs
    sent = [d.token_id for deltas in rig.events for d in deltas if d.request_id == late]
    assert sent == track.token_ids


@pytest.mark.parametrize(("n", "num_pages"), [(3, 10), (5, 16), (10, 31)])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_c4_several_sequences_survive_a_preemption(n: int, num_pages: int, prefix_caching: bool) -> None:
    seen = []
    for pages in (num_pages, 64):
        rig = Rig(pages, 4, max_num_seqs=n + 1, prefix_caching=prefix_caching, max_model_len=40)
        rig.add(Y[:8], 24)
        request_id = rig.add(X[:7], 8, n=n, seed=1)
        rig.run()
        assert (rig.metrics[request_id].num_preemptions > 0) == (pages == num_pages)
        assert rig.stats["num_page_copies"] > 0
        seen.append([rig.ids(request_id, i) for i in range(n)])
        rig.check_reset()
    assert seen[0] == seen[1]
    assert len({tuple(ids) for ids in seen[0]}) == n


@pytest.mark.parametrize(("num_pages", "together"), [(6, 1), (7, 2), (9, 2), (10, 3)])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_c4_sequences_that_cannot_be_in_the_pool_together_take_turns(
    num_pages: int, together: int, prefix_caching: bool
) -> None:
    seen = []
    for pages in (num_pages, 64):
        rig = Rig(pages, 4, prefix_caching=prefix_caching)
        name = rig.add(X[:7], 8, n=3, seed=1, prompt_logprobs=1)
        rig.run()
        seen.append([rig.ids(name, i) for i in range(3)])
        assert rig.stats["num_running_peak"] == (together if pages == num_pages else 3)
        assert rig.stats["num_preemptions_recompute"] == 0 and rig.metrics[name].num_cached_tokens == 0
        rig.check_reset()
    assert seen[0] == seen[1]
    assert len({tuple(ids) for ids in seen[0]}) == 3 and all(len(ids) == 8 for ids in seen[0])


def test_c4_a_later_turn_finds_the_prompt_in_the_cache_and_does_not_count_it_as_a_hit() -> None:
    rig = Rig(5, 4)
    name = rig.add(X[:9], 8, n=3)
    rig.run()
    assert rig.stats["prefix_hit_tokens"] == 0 and rig.stats["prefix_hit_tokens_resumed"] == 16
    assert rig.metrics[name].num_cached_tokens == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_c4_turns_go_on_under_pressure_and_when_some_sequences_are_ended(overlap: bool) -> None:
    rig = Rig(8, 4, overlap=overlap, max_num_waiting=8)
    old = rig.add(Y[:9], 16)
    name = rig.add(X[:7], 12, n=4, seed=1)
    with pytest.raises(QueueFull, match=r"5 sequences wait already"):
        rig.add(X[:3], 2, n=4)
    rig.run_until_preempted(name)
    rig.end(name, 1)  # its turn has not come
    rig.end(name, 0)  # waits to be resumed
    rig.run()
    assert len(rig.ids(name, 2)) == len(rig.ids(name, 3)) == 12 and len(rig.ids(old)) == 16
    rig.check_reset()


@pytest.mark.parametrize(("num_pages", "preemptions"), [(7, 1), (10, 0)])
def test_c10_what_a_resumed_request_finds_of_its_own_is_counted_apart(num_pages: int, preemptions: int) -> None:
    rig = Rig(num_pages, 4)
    rig.add(X[:10], 11)
    rig.add(Y[:10], 11)
    rig.run()
    assert rig.stats["num_preemptions_recompute"] == preemptions
    assert rig.stats["prefix_hit_tokens"] == 0
    assert all(metrics.num_cached_tokens == 0 for metrics in rig.metrics.values())


def test_what_a_resumed_request_finds_of_its_own_is_found() -> None:
    rig = Rig(9, 4)
    rig.add(X[:10], 11)
    late = rig.add(Y[:12], 11)
    rig.run()
    assert rig.metrics[late].num_preemptions > 0 and rig.stats["prefix_hit_tokens_resumed"] > 0


def test_a_sequence_that_is_alone_in_its_group_replays_prompt_and_outputs_in_one_step() -> None:
    rig = Rig(9, 4, prefix_caching=False)
    rig.add(X[:10], 11)
    late = rig.add(Y[:12], 11)
    rig.run_until_preempted(late)
    known = 12 + len(rig.ids(late))
    while not rig.executor.plans[-1].admitted:
        rig.step()
    assert known > 13 and known in [row.num_tokens for row in rig.executor.plans[-1].rows]
    rig.run()


def resumed_siblings() -> Rig:
    """A group of two with a prompt that ends within a page, preempted after its outputs have filled that page."""
    rig = Rig(10, 4, max_num_seqs=4)
    rig.add(Y[:8], 24, request_id="old")
    rig.add(X[:6], 10, n=2, request_id="pair")
    rig.run_until_preempted("pair")
    assert len(rig.ids("pair", 0)) > 3
    return rig


def test_siblings_do_not_write_into_an_indexed_page_that_the_prompt_shares_with_an_output() -> None:
    rig = resumed_siblings()
    rig.run()  # the rig fails when an indexed page is written
    assert rig.stats["prefix_hit_tokens_resumed"] > 0


def test_a_sibling_does_not_take_over_the_hashes_of_its_parents_outputs() -> None:
    rig = resumed_siblings()
    rig.cache.reset_prefix_cache()
    rig.run()  # the rig fails when a page is indexed under another text's hash
    for index in range(2):
        text = [*X[:6], *rig.ids("pair", index)]
        rig.add([*text[:12], 1, 2], 2)
        rig.run()


def test_the_end_of_the_leader_in_the_middle_of_the_prompt_leaves_its_siblings_a_prompt_to_compute() -> None:
    rig = Rig(10, 4, budget=8, threshold=3)
    rig.add(X[:9], 4, n=3, prompt_logprobs=1)
    rig.step(2)
    rig.end("r0", 0)
    rig.run()
    assert len(rig.ids("r0", 1)) == len(rig.ids("r0", 2)) == 4
    rig.check_reset()


def test_the_end_of_a_preempted_leader_leaves_its_siblings_their_tokens() -> None:
    rig = resumed_siblings()
    rig.end("pair", 0)
    rig.run()
    assert len(rig.ids("pair", 1)) == 10
    rig.check_reset()
