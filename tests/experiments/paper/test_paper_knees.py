"""The search for the rate at half a second a token, on functions whose answer is known."""

import math
from collections.abc import Callable

import pytest

from experiments.config import ExperimentConfig
from experiments.kinds import Summary
from experiments.paper.knees import MOST_RATES, bracket, curve, knee, next_rate
from experiments.paper.plans import run_plan, together
from experiments.paper.systems import VLLM, Setting, config_for


def queue(rate: float) -> float:
    """A server that can serve 2 a second, over a trace that ends."""
    return 0.03 / (1 - rate / 2) if rate < 1.98 else 1.5 + 60 * (rate - 1.98)


def steep(rate: float) -> float:
    """Flat, then a wall up to 20 s: 0.5 is reached at 1 + 1e-3 ln 10."""
    return 0.05 * math.exp(min(max(0.0, (rate - 1) / 1e-3), 6.0))


def line(rate: float) -> float:
    """As FasterTransformer's: 0.5 at 2.5."""
    return 0.2 * rate


def searched(latency: Callable[[float], float], start: float) -> tuple[float, int]:
    points = {start: latency(start)}
    while (rate := next_rate(points)) is not None:
        points[rate] = latency(rate)
        assert len(points) < MOST_RATES
    return knee(points), len(points)


@pytest.mark.parametrize("start", [1.0, 1.9, 2.6, 4.0])
@pytest.mark.parametrize(
    ("latency", "answer"), [(queue, 1.88), (line, 2.5), (steep, 1 + 1e-3 * math.log(10))], ids=["queue", "line", "wall"]
)
def test_the_knee_is_found_within_a_per_cent_from_anywhere(
    latency: Callable[[float], float], answer: float, start: float
):
    found, tried = searched(latency, start)
    assert found == pytest.approx(answer, rel=0.01)
    assert tried <= 25


def test_a_good_guess_takes_few_runs():
    assert searched(queue, 1.85)[1] <= 4


def test_the_bracket_is_at_the_first_crossing_however_the_latency_dents_after_it():
    points = {1.0: 0.1, 1.1: 0.6, 1.2: 0.4, 1.3: 0.7}
    assert bracket(points) == (1.0, 1.1)


def test_points_on_one_side_only_make_no_knee():
    with pytest.raises(ValueError, match="run more rates"):
        knee({1.0: 0.1, 2.0: 0.2})


def runner(latency: Callable[[float], float], rounds: list[int]) -> Callable[[list[ExperimentConfig]], list[Summary]]:
    def run(configs: list[ExperimentConfig]) -> list[Summary]:
        rounds.append(len(configs))
        return [{"mean_normalized_latency_s": latency(config.workload.rate or 0.0)} for config in configs]

    return run


def test_a_curve_has_the_rates_asked_for_and_those_of_the_search():
    found = run_plan(curve(lambda rate: config_for(Setting(), VLLM, rate), [0.5, 1.5], 9.0), runner(queue, []))
    rates = [rate for rate, _ in found.points]
    assert {0.5, 1.5} <= set(rates)
    assert rates == sorted(rates)
    assert len(found.digests) == len(rates)
    assert found.knee == pytest.approx(1.88, rel=0.01)


def test_curves_side_by_side_find_what_they_find_alone_in_as_many_rounds_as_the_longest():
    starts = (0.5, 1.8, 3.0)
    plans = [curve(lambda rate: config_for(Setting(), VLLM, rate), [], start) for start in starts]
    alone = [
        run_plan(curve(lambda rate: config_for(Setting(), VLLM, rate), [], start), runner(queue, []))
        for start in starts
    ]
    rounds: list[int] = []
    assert run_plan(together(plans), runner(queue, rounds)) == alone
    assert len(rounds) == max(len(found.points) for found in alone)
    assert rounds[0] == 3


def test_a_latency_that_never_rises_ends_the_search_with_an_error():
    plan = curve(lambda rate: config_for(Setting(), VLLM, rate), [1.0], 1.0)
    with pytest.raises(ValueError, match="do not find"):
        run_plan(plan, runner(lambda rate: 0.1, []))
