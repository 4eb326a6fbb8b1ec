"""Token ids of prompts: shared as far as the columns say, and no further."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jpaged.workloads import Workload


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many first tokens are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def prompts(workload: Workload, vocab_size: int = 50272) -> list[tuple[int, ...]]:
    found = [workload.token_ids(i, vocab_size) for i in range(len(workload))]
    assert tuple(map(len, found)) == workload.prompt_tokens
    assert all(0 <= token < vocab_size for ids in found for token in ids)
    return found


@given(st.lists(st.integers(1, 60), min_size=2, max_size=30), st.sampled_from([50272, 49152, 200]))
def test_prompts_that_share_nothing_differ_from_the_first_token(lengths: list[int], vocab_size: int):
    count = len(lengths)
    workload = Workload(arrival_ns=(0,) * count, prompt_tokens=tuple(lengths), output_tokens=(3,) * count)
    ids = prompts(workload, vocab_size)
    assert ids == prompts(workload, vocab_size)
    assert len({prompt[0] for prompt in ids}) == count


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=2, max_size=10), st.integers(1, 5))
def test_prompts_are_equal_as_far_as_their_blocks_are(blocks: list[list[int]], short: int):
    unit = 5
    tokens = tuple(unit * len(ids) - (unit - short) for ids in blocks)
    workload = Workload(
        arrival_ns=(0,) * len(blocks),
        prompt_tokens=tokens,
        output_tokens=(1,) * len(blocks),
        prefix_ids=tuple(map(tuple, blocks)),
        prefix_unit=unit,
    )
    ids = prompts(workload)
    for a, first in zip(ids, blocks, strict=True):
        for b, second in zip(ids, blocks, strict=True):
            same = common(tuple(first), tuple(second))
            assert common(a, b) == min(same * unit, len(a), len(b))


def test_a_later_turn_begins_with_the_turn_and_the_answer_before():
    workload = Workload(
        arrival_ns=(0, 0, 1, 2),
        prompt_tokens=(30, 30, 45, 80),
        output_tokens=(10, 10, 20, 5),
        session=(1, 2, 1, 1),
        turn=(0, 0, 1, 2),
        shared_prefix_tokens=12,
    )
    ids = prompts(workload)
    assert ids[2][:40] == ids[0] + workload.answer_ids(0, 50272)
    assert ids[3][:65] == ids[2] + workload.answer_ids(2, 50272)
    assert common(ids[0], ids[1]) == 12


def test_a_shared_prefix_is_shared_and_no_more():
    workload = Workload(
        arrival_ns=(0,) * 3, prompt_tokens=(80, 100, 120), output_tokens=(1,) * 3, shared_prefix_tokens=80
    )
    ids = prompts(workload)
    assert [common(ids[0], ids[1]), common(ids[1], ids[2])] == [80, 80]


def test_ids_look_random_and_stay_clear_of_special_tokens():
    ids = Workload(arrival_ns=(0,), prompt_tokens=(100_000,), output_tokens=(9,)).token_ids(0, 50272)
    assert 1000 <= min(ids) < 1010
    assert 44990 < max(ids) < 45000
    assert sum(ids) / len(ids) == pytest.approx(23_000, rel=0.01)
    # As many different ones as drawing with replacement gives.
    assert len(set(ids)) == pytest.approx(44_000 * (1 - 2.718281828 ** (-100 / 44)), rel=0.01)


def test_ids_are_the_same_in_every_version():
    workload = Workload(arrival_ns=(0, 0), prompt_tokens=(4, 4), output_tokens=(2, 2))
    assert workload.token_ids(1, 50272) == (1001, 5658, 39009, 35233)
    with pytest.raises(ValueError, match="vocab_size=1: must be"):
        workload.token_ids(0, 1)
