"""The simulation decides as the device did: same plans, step for step, in the times that its steps took there."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from experiments.config import (
    CacheSection,
    DecodingSection,
    ExecutorSection,
    ExperimentConfig,
    ModelSection,
    PolicySection,
)
from experiments.device_point import StepClock, follow, run_device_point
from experiments.launchers import Job, attempt
from experiments.point import Point
from experiments.record import is_done
from experiments.replay import replay
from experiments.serving import step_log
from jpaged.workloads import WorkloadSpec

POLICIES = ("paged", "vllm-2023", "orca-oracle", "orca-pow2", "orca-max", "static")
TIMED: dict[str, Any] = {"arrivals": "poisson", "rate": 300.0}


def config_of(
    checkpoint: Path, policy: str, mode: str | None = None, n: int = 1, arrivals: dict[str, Any] = TIMED
) -> ExperimentConfig:
    """Up to four rows over a pool that holds hardly more than one longest request."""
    rows: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 40}
    if policy == "static":
        rows["max_static_batch_len"] = 40
    return ExperimentConfig(
        model=ModelSection(name=str(checkpoint), dtype="float32"),
        executor=ExecutorSection(kind="jax"),
        policy=PolicySection(name=policy, preemption_mode=mode, **rows),
        cache=CacheSection(page_size=4, num_pages=16, num_host_pages=16 if mode == "swap" else None),
        workload=WorkloadSpec(
            lengths="uniform", prompt_tokens=(4, 14), output_tokens=(8, 26), num_requests=24, **arrivals
        ),
        decoding=DecodingSection(method="sample", n=n),
    )


def followed(point: Point) -> Point:
    log = {name: [int(value) for value in column] for name, column in step_log(point).items()}
    return follow(point.config, log, point.executor_facts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "mode", "n"),
    [*((policy, None, 1) for policy in POLICIES), ("vllm-2023", "recompute", 2), ("vllm-2023", "swap", 2)],
)
def test_the_simulation_makes_the_plans_of_the_device(
    tiny_checkpoints: Path, policy: str, mode: str | None, n: int
) -> None:
    real = run_device_point(config_of(tiny_checkpoints / "llama", policy, mode, n))
    assert real.finished.all()
    if policy in ("paged", "vllm-2023"):
        stat = "num_preemptions_swap" if mode == "swap" else "num_preemptions_recompute"
        assert real.stats[stat] > 0, "the pool is to be too small"
    simulated = followed(real)
    assert simulated.plan_digest == real.plan_digest
    for name, column in real.steps.items():
        assert simulated.steps[name].tolist() == column.tolist(), name
    for name, column in real.requests.items():
        assert simulated.requests[name].tolist() == column.tolist(), name


def test_a_timed_run_on_a_device_is_replayed_in_its_measured_times(tiny_checkpoints: Path, tmp_path: Path) -> None:
    config = config_of(tiny_checkpoints / "llama", "vllm-2023")
    folder = tmp_path / config.digest()
    assert attempt(Job(config, folder)).error is None
    assert is_done(folder)
    assert replay(folder) == []


def test_requests_that_come_at_once_give_the_same_plans_and_tokens_on_the_device(
    tiny_checkpoints: Path, tmp_path: Path
) -> None:
    arrivals = {"arrivals": "all_at_once"}
    config = config_of(tiny_checkpoints / "llama", "paged", n=2, arrivals=arrivals)
    folder = tmp_path / config.digest()
    assert attempt(Job(config, folder)).error is None
    assert replay(folder) == []


def test_a_simulation_in_other_steps_than_the_devices_is_refused(tiny_checkpoints: Path) -> None:
    real = run_device_point(config_of(tiny_checkpoints / "llama", "orca-max"))
    log = {name: [int(value) for value in column] for name, column in step_log(real).items()}
    log["decode_rows"][5] += 1
    with pytest.raises(ValueError, match="step 5: decode_rows="):
        follow(real.config, log, real.executor_facts)


def test_the_device_serves_beams_and_every_token_is_kept(tiny_checkpoints: Path) -> None:
    config = config_of(tiny_checkpoints / "llama", "paged", arrivals={"arrivals": "all_at_once"})
    beams, cache = DecodingSection(method="beam", n=2), CacheSection(page_size=4, num_pages=24)
    config = dataclasses.replace(config, decoding=beams, cache=cache)
    point = run_device_point(config)
    assert point.outputs is not None
    lengths = {key: len(ids) for key, ids in point.outputs.items()}
    outputs = point.requests["output_tokens"].tolist()
    assert lengths == {(request, beam): outputs[request] for request in range(24) for beam in range(2)}
    with pytest.raises(ValueError, match="which beams live on is the model's to say"):
        follow(config, {}, point.executor_facts)


def test_a_pinned_prefix_is_found_by_every_request(tiny_checkpoints: Path) -> None:
    config = config_of(tiny_checkpoints / "llama", "paged")
    workload = dataclasses.replace(config.workload, shared_prefix_tokens=8, prompt_tokens=(2, 6), num_requests=6)
    decoding = DecodingSection(method="greedy", pin_prefix=True)
    point = run_device_point(dataclasses.replace(config, workload=workload, decoding=decoding))
    assert point.requests["num_cached_tokens"].min() >= 8


def test_a_step_clock_stands_still_between_steps_and_never_falls() -> None:
    clock = StepClock()
    clock.restart()
    assert clock.now_ns == clock.now_ns == 0
    clock.look()
    first = clock.now_ns
    assert 0 < first == clock.now_ns
    clock.advance_to(first + 2_000_000)
    assert clock.now_ns == first + 2_000_000
    clock.advance_to(0)
    assert clock.now_ns == first + 2_000_000
    clock.look()
    assert clock.now_ns > first + 2_000_000
