"""Workload: what it refuses, and what taking and scaling keep."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jpaged.workloads import Workload

GOOD: dict[str, Any] = {"arrival_ns": (0, 5), "prompt_tokens": (3, 9), "output_tokens": (1, 2)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arrival_ns": (0,)}, "arrival_ns has 1 rows, prompt_tokens 2"),
        ({"arrival_ns": (5, 0)}, "row 1: arrival_ns=0: is before the 5 of the row above; sort by arrival"),
        ({"arrival_ns": (0, 1.5)}, "row 1: arrival_ns=1.5: must be an integer"),
        ({"arrival_ns": (-1, 0)}, "row 0: arrival_ns=-1"),
        ({"prompt_tokens": (3, 0)}, "row 1: prompt_tokens=0: must be an integer in [1,"),
        ({"output_tokens": (True, 2)}, "row 0: output_tokens=True"),
        ({"output_tokens": [1, 2]}, "output_tokens: must be a tuple of integers, is a list; use tuple(...)"),
        ({"prefix_ids": ((0,), (0,))}, "prefix_unit=None: prefix_ids and prefix_unit go together"),
        ({"prefix_unit": 4}, "prefix_unit=4: prefix_ids and prefix_unit go together"),
        (
            {"prefix_ids": ((0,), (0,)), "prefix_unit": 4},
            "row 1: prefix_ids: has 1 ids, but 9 prompt tokens are 3 blocks",
        ),
        ({"prefix_ids": ((0,), (-1,)), "prefix_unit": 9}, "row 1: prefix_ids=-1"),
        ({"prefix_ids": ((0,), (0,)), "prefix_unit": 9, "shared_prefix_tokens": 1}, "prefix_ids: say already what"),
        ({"session": (0, 0)}, "session and turn go together"),
        ({"session": (0, 0), "turn": (1, 0)}, "row 1: turn=0: session 0 had turn 1 before"),
        (
            {"session": (0, 0), "turn": (0, 1), "output_tokens": (7, 1)},
            "row 1: prompt_tokens=9: session 0 has 10 tokens",
        ),
        ({"shared_prefix_tokens": 4}, "shared_prefix_tokens=4: a prompt has 3 tokens"),
    ],
)
def test_columns_that_contradict_are_refused(change: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=r".") as caught:
        Workload(**GOOD | change)
    assert said in str(caught.value)


def test_taking_keeps_the_first_rows_and_refuses_too_many():
    workload = Workload(**GOOD, prefix_ids=((0,), (0, 1, 2)), prefix_unit=4)
    first = workload.first(1)
    assert (len(first), first.prompt_tokens, first.prefix_ids) == (1, (3,), ((0,),))
    assert workload.first(2) == workload
    with pytest.raises(ValueError, match=r"count=3: .* has 2 requests; ask for fewer"):
        workload.first(3)


def test_the_same_numbers_in_other_columns_are_another_digest():
    row: dict[str, Any] = {"arrival_ns": (0,), "prompt_tokens": (1,), "output_tokens": (1,)}
    session = Workload(**row, session=(1,), turn=(5,))
    blocks = Workload(**row, prefix_ids=((5,),), prefix_unit=1)
    assert len({session.digest(), blocks.digest(), Workload(**row).digest()}) == 3


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_scaling_time_moves_arrivals_alone(times: list[int], factor: float):
    count = len(times)
    workload = Workload(arrival_ns=tuple(sorted(times)), prompt_tokens=(1,) * count, output_tokens=(1,) * count)
    scaled = workload.time_scaled(factor)
    assert scaled.arrival_ns == pytest.approx([at * factor for at in workload.arrival_ns], abs=0.51, rel=1e-14)
    assert scaled.prompt_tokens == workload.prompt_tokens
    assert workload.time_scaled(1) == workload


@pytest.mark.parametrize("factor", [0, -1.0, float("inf"), float("nan"), True, "2"])
def test_a_factor_that_scales_nothing_is_refused(factor: Any):
    with pytest.raises(ValueError, match="factor="):
        Workload(**GOOD).time_scaled(factor)
