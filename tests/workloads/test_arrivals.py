"""Arrivals: rates, burstiness, and the paper's 10 ms quanta."""
# The paper's recipe is told in NumPy's global stream.
# ruff: noqa: NPY002

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jpaged.workloads import arrivals


def gap_cv(times: tuple[int, ...]) -> float:
    gaps = np.diff(np.array(times))
    return float(gaps.std() / gaps.mean())


def test_poisson_arrivals_have_their_rate_and_a_cv_of_one():
    times = arrivals.poisson(4.0, seed=1, num_requests=20_000)
    assert len(times) / (times[-1] / 1e9) == pytest.approx(4.0, rel=0.03)
    assert gap_cv(times) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_cv_of_gamma_gaps_is_one_over_the_root_of_burstiness(burstiness: float):
    times = arrivals.gamma(4.0, burstiness, seed=1, num_requests=20_000)
    assert gap_cv(times) == pytest.approx(1 / math.sqrt(burstiness), rel=0.04)
    # Not rescaled: the last arrival is near number / rate, not at it.
    assert times[-1] == pytest.approx(5000e9, rel=0.05)
    assert times[-1] != 5000 * 10**9
    again = arrivals.rescaled(times, 4.0)
    assert again[-1] == 5000 * 10**9
    assert gap_cv(again) == pytest.approx(gap_cv(times), rel=1e-6)


@given(st.floats(0.1, 1000), st.floats(0.5, 20), st.integers(0, 2**32 - 1))
def test_a_duration_cuts_the_same_process(rate: float, duration: float, seed: int):
    cut = arrivals.poisson(rate, seed=seed, duration_s=duration)
    assert all(0 <= at < duration * 1e9 for at in cut)
    longer = arrivals.poisson(rate, seed=seed, num_requests=len(cut) + 1)
    assert longer[:-1] == cut
    assert longer[-1] >= duration * 1e9


def test_uniform_arrivals_do_not_drift():
    times = arrivals.uniform(3.0, num_requests=300_001)
    assert times[:4] == (0, 333_333_333, 666_666_667, 10**9)
    assert times[-1] == 100_000 * 10**9
    assert len(arrivals.uniform(2.0, duration_s=10)) == 20


def test_the_papers_quanta_are_numpys_global_stream_without_touching_it():
    np.random.seed(0)
    expected = [q * 10_000_000 for q in range(60_000) for _ in range(np.random.poisson(2.0 * 0.01))]
    np.random.seed(7)
    random.seed(7)
    before = np.random.get_state()[1].tolist(), random.getstate()
    assert list(arrivals.paper_quanta(2.0, 600)) == expected
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before


@pytest.mark.parametrize(("duration", "count"), [(3600, 7280), (600, 1160)])
def test_two_a_second_are_as_many_requests_as_in_the_paper(duration: int, count: int):
    times = arrivals.paper_quanta(2.0, duration)
    assert len(times) == count
    assert all(at % 10_000_000 == 0 for at in times)
    assert list(times) == sorted(times)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: arrivals.poisson(0, seed=0, num_requests=1), "rate=0: must be a finite number of at least 1e-06"),
        (lambda: arrivals.poisson(math.nan, seed=0, num_requests=1), "rate=nan"),
        (lambda: arrivals.poisson(1, seed=0), "num_requests=None, duration_s=None: give one"),
        (lambda: arrivals.poisson(1, seed=0, num_requests=1, duration_s=1), "give one"),
        (lambda: arrivals.poisson(1, seed=0, duration_s=math.inf), "duration_s=inf: must be a finite number above 0"),
        (lambda: arrivals.gamma(1, -1, seed=0, num_requests=1), "burstiness=-1: must be"),
        (lambda: arrivals.rescaled((0, 0), 1), "arrival_ns: all are at 0"),
        (lambda: arrivals.poisson(1e-6, seed=0, num_requests=5000), "num_requests=5000: the rate is so low"),
    ],
)
def test_what_makes_no_arrivals_is_refused(call, said: str):
    with pytest.raises(ValueError, match=said.split(":")[0].split("=")[0]) as caught:
        call()
    assert said in str(caught.value)


def test_more_requests_than_a_machine_can_hold_are_refused_before_they_fill_it() -> None:
    with pytest.raises(ValueError, match="num_requests=100000000000: must be between 1 and 10000000"):
        arrivals.poisson(1.0, seed=0, num_requests=10**11)
    with pytest.raises(ValueError, match="more than 10000000 requests arrive; lower it or the rate"):
        arrivals.paper_quanta(1e9, 3600.0)
