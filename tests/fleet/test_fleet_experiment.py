"""The questions about fleets: what a goodput is, and what conversations look like."""

from pathlib import Path

import numpy as np
import pytest

from experiments.config import MetricsSection
from experiments.fleet import conversations, goodput_of, largest_rate, run_fleet, share_good
from experiments.kinds import FleetConfig, FleetSection
from experiments.replay import replay
from experiments.sweep import run_points
from experiments.traces import TRACES
from jpaged.core.requests.request import RequestMetrics
from jpaged.workloads import WorkloadSpec, build_workload

LIMITS = MetricsSection(slo_ttft_ms=250.0, slo_tpot_ms=100.0)


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
    assert share_good([good, late, slow, one_token, None], LIMITS) == pytest.approx(0.4)


def test_conversations_come_at_their_rate_and_each_turn_after_the_one_before() -> None:
    spec = WorkloadSpec(lengths="sharegpt_multiturn", arrivals="all_at_once", num_requests=1200, max_model_len=8192)
    workload = conversations(build_workload(spec, TRACES), 6.0)
    assert workload.session is not None and workload.turn is not None
    turns: dict[int, list[int]] = {}
    for session, turn in zip(workload.session, workload.turn, strict=True):
        turns.setdefault(session, []).append(turn)
    assert all(seen == sorted(seen) for seen in turns.values()) and max(map(len, turns.values())) > 3
    neighbours = np.mean(np.diff(workload.session) == 0)
    assert neighbours < 0.1, "conversations do not mingle"


def test_a_fleet_apart_moves_what_a_colocated_one_keeps_and_both_serve_everyone() -> None:
    workload = build_workload(WorkloadSpec(lengths="sharegpt", rate=4.0, num_requests=30))
    together = run_fleet(FleetConfig(fleet=FleetSection(num_colocated=2)), workload)
    apart = run_fleet(FleetConfig(fleet=FleetSection(num_prefill=1, num_decode=1)), workload)
    for loop in (together, apart):
        assert all(m is not None and m.finished is not None for m in loop.metrics)
    assert together.bytes_moved == 0 and apart.bytes_moved > sum(workload.prompt_tokens) * 819_200


@pytest.mark.slow
def test_a_slow_network_costs_goodput() -> None:
    workload = WorkloadSpec(lengths="sharegpt", rate=1.0, duration_s=10.0, max_model_len=2048)
    quick, slow = (
        goodput_of(
            FleetConfig(
                fleet=FleetSection(num_prefill=1, num_decode=1, link=link),
                workload=workload,
                metrics=MetricsSection(slo_ttft_ms=250.0, slo_tpot_ms=30.0),
            )
        )
        for link in ("nvlink3", "25Gb/s")
    )
    assert quick > slow


def test_a_fleet_is_a_run_that_can_be_replayed(tmp_path: Path) -> None:
    config = FleetConfig(fleet=FleetSection(num_colocated=2), workload=WorkloadSpec(rate=4.0, num_requests=20))
    (summary,) = run_points([config], tmp_path, progress=False)
    assert tuple(summary) == config.results and summary["completed"] == 20
    assert replay(tmp_path / config.digest()) == []


def test_a_fleet_of_no_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="give num_colocated, or num_prefill and num_decode"):
        FleetSection(num_colocated=1, num_prefill=1)
