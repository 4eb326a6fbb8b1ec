"""The questions about fleets: what a goodput is, and what conversations look like."""

import numpy as np
import pytest

from experiments.fleet import Fleet, Service, conversations, goodput_of, largest_rate, main, run_fleet, share_good
from jpaged.core.requests.request import RequestMetrics
from jpaged.workloads import WorkloadSpec, build_workload

SERVICE = Service(model="opt-13b", lengths="sharegpt", ttft_s=0.25, tpot_s=0.1)


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.7, 40.0])
def test_the_largest_rate_is_found_from_below(limit: float) -> None:
    found = largest_rate(lambda rate: rate <= limit)
    assert limit * 0.94 <= found <= limit


def test_where_no_rate_is_good_there_is_none() -> None:
    assert largest_rate(lambda rate: False) == 0.0


def test_a_request_is_good_if_it_keeps_both_limits_and_a_refused_one_is_not() -> None:
    good = RequestMetrics(arrival=1.0, first_token=1.2, finished=2.0, itl=[0.05, 0.15])
    late = RequestMetrics(arrival=1.0, first_token=1.3, finished=2.0, itl=[0.05])
    slow = RequestMetrics(arrival=1.0, first_token=1.2, finished=2.0, itl=[0.05, 0.2])
    one_token = RequestMetrics(arrival=1.0, first_token=1.2, finished=1.2)
    assert share_good([good, late, slow, one_token, None], SERVICE) == pytest.approx(0.4)


def test_conversations_come_at_their_rate_and_each_turn_after_the_one_before() -> None:
    workload = conversations(6.0)
    assert workload.session is not None and workload.turn is not None
    turns: dict[int, list[int]] = {}
    for session, turn in zip(workload.session, workload.turn, strict=True):
        turns.setdefault(session, []).append(turn)
    assert all(seen == sorted(seen) for seen in turns.values()) and max(map(len, turns.values())) > 3
    neighbours = np.mean(np.diff(workload.session) == 0)
    assert neighbours < 0.1, "conversations do not mingle"


def test_a_fleet_apart_moves_what_a_colocated_one_keeps_and_both_serve_everyone() -> None:
    workload = build_workload(WorkloadSpec(lengths="sharegpt", rate=4.0, num_requests=30))
    together = run_fleet(Fleet(num_colocated=2), "opt-13b", workload)
    apart = run_fleet(Fleet(num_prefill=1, num_decode=1), "opt-13b", workload)
    for loop in (together, apart):
        assert all(m is not None and m.finished is not None for m in loop.metrics)
    assert together.bytes_moved == 0 and apart.bytes_moved > sum(workload.prompt_tokens) * 819_200


@pytest.mark.slow
def test_a_slow_network_costs_goodput() -> None:
    service = Service(model="opt-13b", lengths="sharegpt", ttft_s=0.25, tpot_s=0.03)
    fleets = [Fleet(num_prefill=1, num_decode=1, link=link) for link in ("nvlink3", "25Gb/s")]
    quick, slow = (goodput_of(fleet, service, duration_s=10.0) for fleet in fleets)
    assert quick > slow


def test_an_unknown_question_is_told_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weather"]) == 2
    assert "'weather' is no question; ask goodput, routers" in capsys.readouterr().err
