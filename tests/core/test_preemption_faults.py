"""Faults of group C: preemption by recomputation changes no token, no log probability and no order."""

import pytest
from rig import Rig

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


def test_c4_sequences_that_can_never_be_in_the_pool_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"n=3.*needs 10 pages, the pool has 6"):
        Rig(6, 4).add(X[:7], 8, n=3, seed=1)


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
