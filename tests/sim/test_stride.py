"""A stride is what the same steps would have been one by one: plans, times, statistics, memory."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.engine_loop import EngineLoop
from jpaged.core.open_loop import OpenLoop
from jpaged.core.requests.request import Request
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.core.scheduling.presets import POLICIES, with_policy
from jpaged.sim.clock import VirtualClock
from jpaged.sim.run_log import ObservedExecutor, RunLog
from jpaged.sim.stride import Stride
from jpaged.sim.work import StepWork
from tests.sim.logs import LoggedExecutor

RIVALS = sorted(set(POLICIES) - {"paged"})
Trace = list[tuple[int, int, int, int]]


class Prices:
    """A cost that depends on all that a step does."""

    name = "test"

    def step_ns(self, work: StepWork) -> int:
        moves = work.pages_swapped_in + work.pages_swapped_out + work.page_copies
        return 1000 + 7 * work.decode_rows + 3 * work.context_tokens + 11 * work.prefill_tokens + 5 * moves

    def host_ns(self, work: StepWork) -> int:
        return 13 + work.samples


class Outcome:
    """One run of a trace, and how many steps its strides took."""

    def __init__(self, policy: str, trace: Trace, options: dict[str, Any], *, strides: bool) -> None:
        cache, scheduler = with_policy(
            policy, CacheConfig(), SchedulerConfig(), page_size=4, max_model_len=64, **options
        )
        clock = VirtualClock()
        executor = LoggedExecutor(Prices(), clock, page_size=4, padded=policy == "static")
        observed = ObservedExecutor(executor, clock)
        engine = Engine(scheduler, cache, observed, vocab_size=100, clock=clock)
        self.log = RunLog(engine, digest=True)
        observed.observer = self.log.add
        stride = Stride(engine, executor, self.log)
        self.strided = 0

        def leap(next_arrival_ns: int | None, until_ns: int | None) -> int:
            count = stride(next_arrival_ns, until_ns)
            engine.scheduler.check()
            self.strided += count
            return count

        requests, arrivals, now_ns = list[Request](), list[int](), 0
        for i, (gap, prompt, output, n) in enumerate(trace):
            now_ns += gap
            arrivals.append(now_ns)
            params = SamplingParams(n=n, max_tokens=output, ignore_eos=True)
            requests.append(
                Request(request_id=str(i), prompt_token_ids=(1,) * prompt, params=params, arrival=now_ns / 1e9)
            )
        self.loop = OpenLoop(EngineLoop(engine), clock, requests, arrivals, leap=leap if strides else None)
        self.loop.run()
        self.end_ns = clock.now_ns
        self.stats = engine.stats_dict()
        self.steps = executor.columns()


traces = st.lists(
    st.tuples(st.sampled_from([0, 0, 500, 5_000, 60_000]), st.integers(1, 30), st.integers(1, 34), st.just(1)),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("policy", RIVALS)
@given(
    trace=traces,
    num_pages=st.sampled_from([16, 20, 40]),
    mode=st.sampled_from(["auto", "swap"]),
    num_host_pages=st.sampled_from([64, 8, 3, 0]),
)
@settings(max_examples=40, derandomize=True)
def test_strides_change_nothing(policy: str, trace: Trace, num_pages: int, mode: str, num_host_pages: int) -> None:
    options: dict[str, Any] = {"num_pages": num_pages}
    if policy == "static":
        options |= {"max_num_seqs": 3, "max_static_batch_len": 64}
    elif policy == "vllm-2023":
        options |= {"preemption_mode": mode, "num_host_pages": num_host_pages, "max_num_seqs": 8}
    check_equal(Outcome(policy, trace, options, strides=False), Outcome(policy, trace, options, strides=True))


def check_equal(single: Outcome, strided: Outcome) -> None:
    assert single.loop.refused == strided.loop.refused
    assert single.loop.metrics == strided.loop.metrics
    assert single.end_ns == strided.end_ns
    assert single.stats == strided.stats
    assert single.steps == strided.steps
    assert single.log.rows == strided.log.rows
    assert single.log.digest and strided.log.digest
    assert single.log.digest.hexdigest() == strided.log.digest.hexdigest()


@pytest.mark.parametrize("policy", RIVALS)
def test_many_steps_of_a_long_trace_are_strided(policy: str) -> None:
    trace = [(4_000 * (i % 3), 3 + 5 * i % 20, 4 + 7 * i % 40, 1) for i in range(60)]
    options: dict[str, Any] = {"num_pages": 36, "max_num_seqs": 8}
    if policy == "static":
        options["max_static_batch_len"] = 64
    single, strided = (Outcome(policy, trace, options, strides=flag) for flag in (False, True))
    check_equal(single, strided)
    assert single.strided == 0
    assert strided.strided > 0.25 * len(strided.log.rows)
    if policy == "vllm-2023":
        assert strided.stats["num_preemptions_recompute"]


def test_a_swapped_group_behind_a_recomputed_one_is_the_one_whose_turn_it_is() -> None:
    # With a host pool that holds one of them, one is recomputed and waits in front of one that is swapped out.
    trace = [(400, 3 + 9 * i % 28, 34 - 5 * i % 30, 1) for i in range(40)]
    options: dict[str, Any] = {"num_pages": 20, "num_host_pages": 6, "preemption_mode": "swap", "max_num_seqs": 8}
    single, strided = (Outcome("vllm-2023", trace, options, strides=flag) for flag in (False, True))
    check_equal(single, strided)
    assert single.stats["num_preemptions_swap"] and single.stats["num_preemptions_recompute"]


def test_groups_of_several_sequences_are_stepped() -> None:
    trace = [(0, 9, 12, 3), (100, 9, 12, 1)]
    outcome = Outcome("vllm-2023", trace, {"num_pages": 64, "num_host_pages": 8}, strides=True)
    lone = [row for row in outcome.log.rows if row[outcome_column("num_sequences")] == 1]
    assert outcome.strided <= len(lone)
    check_equal(Outcome("vllm-2023", trace, {"num_pages": 64, "num_host_pages": 8}, strides=False), outcome)


def outcome_column(name: str) -> int:
    from jpaged.sim.run_log import STEP_COLUMNS

    return STEP_COLUMNS.index(name)


@pytest.mark.parametrize("policy", RIVALS)
def test_the_categories_of_memory_add_up_to_the_pool(policy: str) -> None:
    trace = [(20_000 * (i % 2), 5 + i % 9, 3 + i % 17, 1) for i in range(20)]
    options: dict[str, Any] = {"num_pages": 40, "max_num_seqs": 8}
    if policy == "static":
        options["max_static_batch_len"] = 64
    columns = Outcome(policy, trace, options, strides=True).log.columns()
    parts = [columns[name] for name in columns if name.endswith("_slots")]
    assert len(parts) == 5
    for slots in zip(*parts, strict=True):
        assert sum(slots) == 160 and min(slots) >= 0
