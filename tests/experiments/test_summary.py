"""The summary of a point: every number against one computed by hand, and the verdict on saturation."""

import numpy as np
import pytest

from experiments.check import check_shown
from experiments.config import CacheSection, DecodingSection, ExperimentConfig, MetricsSection, PolicySection
from experiments.point import Point
from experiments.serving import run_point
from experiments.summary import summarize
from jpaged.sim.run_log import STEP_COLUMNS
from jpaged.workloads import Workload, WorkloadSpec

MS = 1_000_000


def point_of(
    arrivals: list[int], firsts: list[int], ends: list[int], outputs: list[int], *, config: ExperimentConfig, **given
) -> Point:
    """A point with these requests, in ms, and two steps: one of 1 ms with 2 running, one of 3 ms with 4."""
    steps = {name: np.zeros(2, np.int64) for name in STEP_COLUMNS}
    steps |= {
        "start_ns": np.array([0, MS]),
        "end_ns": np.array([MS, 4 * MS]),
        "num_groups": np.array([2, 4]),
        "num_sequences": np.array([4, 8]),
        "pages_used": np.array([4, 8]),
        "logical_pages": np.array([4, 16]),
        "tokens_slots": np.array([48, 96]),
        "internal_slots": np.array([16, 32]),
        "free_slots": np.array([96, 32]),
    }
    count = len(arrivals)
    requests = {
        "arrival_ns": np.array(arrivals) * MS,
        "prompt_tokens": np.full(count, 10),
        "output_tokens": np.array(outputs),
        "first_scheduled_ns": np.array(arrivals) * MS,
        "first_token_ns": np.array(firsts) * MS,
        "finished_ns": np.array(ends) * MS,
        "num_preemptions": np.zeros(count, np.int64),
        "num_preemptions_swap": np.zeros(count, np.int64),
        "num_cached_tokens": np.zeros(count, np.int64),
    }
    stats = {
        "num_preemptions_recompute": 2,
        "num_preemptions_swap": 1,
        "prefix_hit_tokens": 5,
        "num_page_copies": 7,
    }
    workload = Workload(
        arrival_ns=tuple(a * MS for a in arrivals), prompt_tokens=(10,) * count, output_tokens=tuple(outputs)
    )
    facts = {"itl_ns": np.array([2, 4]) * MS, "stats": stats, "plan_digest": "d", "num_pages": 10, "end_ns": 100 * MS}
    return Point(config=config, workload=workload, requests=requests, steps=steps, **{**facts, **given})


def test_times_and_rates_are_defined_as_vllms_bench_defines_them() -> None:
    config = ExperimentConfig(metrics=MetricsSection(slo_ttft_ms=10.0, slo_tpot_ms=4.0))
    # TTFT 10, 20, 5 ms; latency 30, 40, 5 ms; the last has one token, and so no time per output token.
    found = summarize(point_of([0, 10, 20], [10, 30, 25], [30, 50, 25], [5, 6, 1], config=config))
    assert found["completed"] == 3
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (30, 12)
    assert found["duration"] == pytest.approx(0.1)
    assert found["request_throughput"] == pytest.approx(30.0)
    assert found["output_throughput"] == pytest.approx(120.0)
    assert found["total_token_throughput"] == pytest.approx(420.0)
    assert found["mean_ttft_ms"] == pytest.approx(35 / 3)
    assert found["median_ttft_ms"] == pytest.approx(10.0)
    assert found["std_ttft_ms"] == pytest.approx(np.std([10, 20, 5]))
    assert found["p99_ttft_ms"] == pytest.approx(np.percentile([10, 20, 5], 99))
    assert found["mean_tpot_ms"] == pytest.approx((20 / 4 + 20 / 5) / 2)
    assert found["mean_itl_ms"] == pytest.approx(3.0)
    assert found["mean_e2el_ms"] == pytest.approx(25.0)
    assert found["mean_normalized_latency_s"] == pytest.approx((30 / 5 + 40 / 6 + 5) / 3 / 1e3)
    # The first is too slow a token, the second too late; the third has no time per token to keep.
    assert found["request_goodput"] == pytest.approx(10.0)
    # The first ends when nobody comes, the second runs from 10 to 50 and the third from 20 to 25.
    assert found["max_concurrent_requests"] == 3


def test_means_over_steps_are_plain_and_weighted_and_keep_to_the_window() -> None:
    facts = ([0, 1], [5, 6], [30, 31], [5, 5])
    found = summarize(point_of(*facts, config=ExperimentConfig()))
    assert (found["mean_running_requests"], found["mean_running_requests_timed"]) == (3.0, (2 * 1 + 4 * 3) / 4)
    assert (found["mean_running_sequences"], found["mean_running_sequences_timed"]) == (6.0, 7.0)
    # The pool has 10 pages of 16 slots.
    assert found["kv_token_share"] == pytest.approx((48 + 96) / 320)
    assert found["kv_free_share"] == pytest.approx((96 + 32) / 320)
    assert found["kv_waste_share"] == pytest.approx(0.25)
    assert found["sharing_saved"] == pytest.approx(1 - 1 / 1.5)
    assert found["prefix_hit_rate"] == pytest.approx(5 / 20)
    assert found["request_goodput"] is None
    late = summarize(point_of(*facts, config=ExperimentConfig(metrics=MetricsSection(start_s=0.001))))
    assert late["mean_running_requests"] == 4.0
    assert late["num_steps"] == 2
    assert late["num_steps_in_window"] == 1


def test_every_sequence_of_a_request_has_output_tokens() -> None:
    config = ExperimentConfig(decoding=DecodingSection(method="sample", n=3))
    found = summarize(point_of([0], [5], [30], [5], config=config))
    assert found["total_output_tokens"] == 15


def test_a_run_in_which_nothing_finished_has_no_latencies() -> None:
    found = summarize(point_of([0, 1], [0, 0], [0, 0], [5, 5], config=ExperimentConfig()))
    assert found["completed"] == 0
    assert found["mean_ttft_ms"] is None
    assert found["mean_normalized_latency_s"] is None
    assert found["saturated"] is True
    assert found["saturation_reason"] == "0 of 2 requests that came were completed"


def test_refused_requests_are_failed_and_neither_served_nor_waiting() -> None:
    found = summarize(point_of([0, 1], [5, 0], [30, 0], [5, 5], config=ExperimentConfig(), refused={1: "too long"}))
    assert (found["completed"], found["failed"], found["max_concurrent_requests"]) == (1, 1, 1)
    assert found["saturated"] is None


@pytest.mark.parametrize(("rate", "saturated"), [(0.3, False), (1.0, False), (4.0, True)])
def test_a_rate_is_too_much_if_more_and_more_requests_are_in_the_system(rate: float, saturated: bool) -> None:
    """Four rows serve each request in about 1.4 s, so nearly 3 a second."""
    config = ExperimentConfig(
        policy=PolicySection(name="orca-oracle", max_num_seqs=4),
        cache=CacheSection(num_pages=1000),
        workload=WorkloadSpec(lengths="constant", prompt_tokens=20, output_tokens=60, rate=rate, num_requests=300),
    )
    found = summarize(run_point(config))
    assert found["saturated"] is saturated, found["saturation_reason"]
    assert "in the last" in str(found["saturation_reason"])


def test_a_run_that_is_stopped_counts_those_alone_that_came() -> None:
    config = ExperimentConfig(
        stop_at_s=60.0,
        workload=WorkloadSpec(lengths="constant", prompt_tokens=20, output_tokens=60, rate=1.0, num_requests=300),
    )
    point = run_point(config)
    found = summarize(point)
    assert found["duration"] == pytest.approx(60.0, abs=0.1)
    assert found["completed"] == point.finished.sum()
    assert 0 < point.finished.sum() < 100
    assert found["failed"] == 0
    assert found["saturated"] is False


def test_the_shares_of_the_pool_add_up_under_every_policy() -> None:
    for name in ("vllm-2023", "orca-max", "orca-pow2", "orca-oracle", "static"):
        config = ExperimentConfig(
            policy=PolicySection(name=name), workload=WorkloadSpec(rate=1.0, num_requests=30, lengths="sharegpt")
        )
        found = summarize(run_point(config))
        parts = ("token", "reserved", "internal", "rounding", "free")
        shares = np.array([found[f"kv_{part}_share"] for part in parts], float)
        assert shares.sum() == pytest.approx(1.0), name
        assert 0 < shares[0] < 1


def test_every_number_of_a_summary_can_be_asked_for_before_there_is_one() -> None:
    found = summarize(run_point(ExperimentConfig(workload=WorkloadSpec(rate=1.0, num_requests=5))))
    check_shown(list(found))
    with pytest.raises(ValueError, match="show: mean_tft_ms is not in a summary; did you mean mean_ttft_ms"):
        check_shown([*found, "mean_tft_ms"])
