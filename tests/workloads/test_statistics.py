"""Statistics of workloads, on ones that can be counted by hand."""

import pytest

from jpaged.workloads import PrefixReuse, Workload, describe, prefix_reuse


def test_lengths_and_gaps_are_described_by_hand_counted_numbers():
    stats = describe(Workload(arrival_ns=(0, 10**9, 4 * 10**9), prompt_tokens=(1, 2, 6), output_tokens=(2, 2, 4)))
    assert (stats.num_requests, stats.span_s, stats.rate, stats.prefix_reuse) == (3, 4.0, 0.5, None)
    assert stats.gap_cv == pytest.approx(0.5)
    assert (stats.prompt.mean, stats.prompt.min, stats.prompt.max) == (3.0, 1, 6)
    assert stats.prompt.std == pytest.approx((14 / 3) ** 0.5)
    assert (stats.prompt.quantile(50), stats.prompt.quantile(75)) == (2.0, 4.0)
    assert stats.output.mean_inverse == pytest.approx(1.25 / 3)


def test_one_burst_has_no_rate():
    stats = describe(Workload(arrival_ns=(5, 5), prompt_tokens=(1, 1), output_tokens=(1, 1)))
    assert (stats.rate, stats.gap_cv) == (None, None)
    empty = Workload(arrival_ns=(), prompt_tokens=(), output_tokens=())
    with pytest.raises(ValueError, match="has no requests to describe"):
        describe(empty)


def test_blocks_are_found_only_behind_a_known_prefix():
    workload = Workload(
        arrival_ns=(0,) * 4,
        prompt_tokens=(12, 12, 10, 8),
        output_tokens=(1,) * 4,
        prefix_ids=((0, 1, 2), (3, 1, 2), (0, 1, 4), (3, 1)),
        prefix_unit=4,
    )
    assert prefix_reuse(workload) == PrefixReuse(4, 11, 0 + 0 + 2 + 2)


def test_the_first_request_finds_no_shared_prefix():
    workload = Workload(
        arrival_ns=(0,) * 3, prompt_tokens=(40, 50, 41), output_tokens=(1,) * 3, shared_prefix_tokens=35
    )
    assert prefix_reuse(workload) == PrefixReuse(16, 3 + 4 + 3, 2 + 2)
    assert prefix_reuse(workload, block_tokens=35).share == 2 / 6


def test_a_turn_finds_the_prompt_and_answer_before_it():
    workload = Workload(
        arrival_ns=(0,) * 3,
        prompt_tokens=(10, 10, 40),
        output_tokens=(9, 9, 1),
        session=(0, 1, 0),
        turn=(0, 0, 1),
        shared_prefix_tokens=5,
    )
    assert prefix_reuse(workload, block_tokens=4) == PrefixReuse(4, 3 + 3 + 10, 0 + 1 + 4)
