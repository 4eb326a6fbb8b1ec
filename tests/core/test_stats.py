"""What the engine says about itself: times taken once, counters that never fall, records that agree with the pool."""

import dataclasses
import random
from typing import Any

import pytest

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.executor import SyncExecutor
from jpaged.core.observe.step_records import StepRecord
from jpaged.core.plan import MoveKind, SchedulerOutput, StepResult, TokenLogprobs
from jpaged.core.requests.request import Request, RequestMetrics, beam_params
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams

# What may rise and fall: all else in the stats is a counter or a peak.
GAUGES = {
    "pages_free", "pages_cached", "host_pages_free", "tail_waste_mean", "sharing_saved", "median_queue_ms",
    "median_ttft_ms", "median_itl_ms", "host_ms_per_step",
}  # fmt: skip


class Ticks:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class Device(SyncExecutor):
    """Answers every sample; each step takes one second."""

    def __init__(self, clock: Ticks) -> None:
        self.clock = clock
        self.asked: dict[int, int | None] = {}

    def execute(self, plan: SchedulerOutput) -> StepResult:
        self.clock.time += 1.0
        for admitted in plan.admitted:
            self.asked[admitted.lane] = admitted.params.logprobs
        logprobs = tuple(
            TokenLogprobs(-1.0, 1, tuple(range(top)), tuple(-1.0 - i for i in range(top)))
            if (top := self.asked[sample.lane])
            else None
            for sample in plan.samples
        )
        return StepResult((5,) * len(plan.samples), logprobs)


class Watched:
    """An engine on a tiny pool, with the metrics of all its requests."""

    def __init__(self, num_pages: int = 12, *, mode: str = "auto", caching: bool = True, host: int = 0) -> None:
        clock = Ticks()
        self.engine = Engine(
            SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=16, max_model_len=32, preemption_mode=mode),
            CacheConfig(
                num_pages=num_pages, page_size=4, num_host_pages=host, enable_prefix_caching=caching, watermark=0.0
            ),
            Device(clock),
            vocab_size=100,
            clock=clock,
            record_steps=True,
        )
        self.metrics: dict[str, RequestMetrics] = {}

    def add(self, prompt: Any, max_tokens: int, *, n: int = 1, beams: int | None = None) -> str:
        name = f"r{len(self.metrics)}"
        beam = None if beams is None else BeamSearchParams(beam_width=beams, max_tokens=max_tokens, ignore_eos=True)
        params = SamplingParams(n=n, max_tokens=max_tokens) if beam is None else beam_params(beam, 0)
        self.engine.add(
            Request(
                request_id=name,
                prompt_token_ids=tuple(prompt),
                params=params,
                beam=beam,
                arrival=self.engine.clock.now(),
            )
        )
        metrics = self.engine.metrics(name)
        assert metrics is not None
        self.metrics[name] = metrics
        return name

    def run(self) -> None:
        while self.engine.has_unfinished:
            self.engine.step()
            self.engine.scheduler.check()

    @property
    def stats(self) -> dict[str, Any]:
        return self.engine.stats_dict()

    @property
    def records(self) -> list[StepRecord]:
        assert self.engine.recorder is not None
        return self.engine.recorder.records


def test_j1_a_first_token_is_timed_once_whatever_is_preempted_chunked_or_aborted():
    watched = Watched()
    names = [watched.add(range(i, i + 10), 12) for i in range(4)]
    unborn, cut = watched.add(range(20), 4), watched.add(range(50, 58), 8)
    first: dict[str, float] = {}
    while watched.engine.has_unfinished:
        for delta in watched.engine.step():
            if delta.token_id is not None:
                first.setdefault(delta.request_id, watched.engine.clock.now())
        if not watched.metrics[unborn].finished:
            watched.engine.abort(unborn)
        if cut in first:
            watched.engine.abort(cut)
    assert watched.stats["num_preemptions_recompute"] > 0
    assert max(watched.metrics[name].num_preemptions for name in names) > 0
    assert {name: watched.metrics[name].first_token for name in first} == first
    assert set(first) == {*names, cut}
    assert watched.metrics[unborn].ttft is None
    assert watched.stats["num_first_tokens"] == len(watched.engine.stats.ttft) == 5
    assert watched.stats["num_requests_finished"] == 6


def test_one_inter_token_latency_is_noted_for_each_token_after_a_sequences_first():
    watched = Watched(40)
    name, other = watched.add(range(9), 5, n=3), watched.add(range(30, 39), 7)
    watched.run()
    assert watched.metrics[name].itl == [1.0] * (3 * 4)
    assert watched.metrics[other].itl == [1.0] * 6
    assert watched.stats["median_itl_ms"] == 1000.0
    assert watched.stats["median_ttft_ms"] == pytest.approx(1e3 * 1.5)


def test_a_preemption_shows_as_one_long_latency_and_does_not_move_the_first_token():
    watched = Watched(8, caching=False)
    watched.add(range(10), 16)
    name = watched.add(range(20, 30), 8)
    watched.run()
    metrics = watched.metrics[name]
    assert metrics.num_preemptions == 1
    assert len(metrics.itl) == 7
    assert sorted(metrics.itl)[-2] == 1.0
    assert metrics.finished is not None
    assert metrics.first_token is not None
    assert sum(metrics.itl) == metrics.finished - metrics.first_token


def test_a_beam_search_notes_the_time_between_its_steps():
    watched = Watched(40)
    name = watched.add(range(9), 6, beams=3)
    watched.run()
    assert watched.metrics[name].itl == [1.0] * 5
    assert watched.metrics[name].ttft == 1.0


def test_preemptions_are_told_apart_by_mode():
    swapping, recomputing = Watched(9, mode="swap", host=32), Watched(9, mode="recompute", host=32)
    for watched, mode in ((swapping, "swap"), (recomputing, "recompute")):
        for i in range(3):
            watched.add(range(10 * i, 10 * i + 9), 9, n=2)
        watched.run()
        hit = [name for record in watched.records for name in getattr(record, f"preempted_{mode}")]
        assert hit
        assert watched.stats[f"num_preemptions_{mode}"] == len(hit)
        assert sum(metrics.num_preemptions for metrics in watched.metrics.values()) == len(hit)
    assert sum(metrics.num_preemptions_swap for metrics in recomputing.metrics.values()) == 0
    assert swapping.stats["num_preemptions_recompute"] == 0
    out = sum(len(record.moved(MoveKind.SWAP_OUT)) for record in swapping.records)
    assert (
        out
        == sum(len(record.moved(MoveKind.SWAP_IN)) for record in swapping.records)
        == swapping.stats["num_pages_swapped_out"]
    )
    assert max(record.host_pages_used for record in swapping.records) > 0


def test_j3_no_counter_falls_under_random_arrivals_aborts_and_preemptions():
    for seed in range(12):
        rng = random.Random(seed)
        watched = Watched(rng.choice((8, 12, 20)), mode=rng.choice(("auto", "swap", "recompute")), host=16)
        before = watched.stats
        for _ in range(60):
            if rng.random() < 0.4:
                start, kind = rng.randrange(60), rng.choice(({}, {"n": 2}, {"beams": 2}))
                watched.add(range(start, start + rng.randint(1, 10)), rng.randint(1, 6), **kind)
            if watched.metrics and rng.random() < 0.15:
                watched.engine.abort(rng.choice(list(watched.metrics)))
            watched.engine.step()
            now = watched.stats
            assert now.keys() == before.keys()
            fell = [key for key in now if key not in GAUGES and now[key] < before[key]]
            assert not fell, fell
            before = now
        watched.run()
        ended = [m for m in watched.metrics.values() if m.finished is not None]
        assert watched.stats["num_requests_finished"] == len(ended) == len(watched.metrics)
        assert watched.stats["num_first_tokens"] == sum(m.first_token is not None for m in ended)


def test_records_agree_with_the_pool_and_with_the_counters():
    watched = Watched(20, host=16)
    for i in range(6):
        watched.add([1, 2, 3, 4, *range(10 * i, 10 * i + 5)], 8, n=1 + i % 3)
    watched.run()
    assert len(watched.records) == watched.stats["num_steps"]
    for record in watched.records:
        assert record.pages_used + record.pages_cached + record.pages_free == record.num_pages
        assert sum(record.ref_counts.values()) == record.pages_used
        assert record.pages_saved == record.pages_logical - record.pages_used >= 0
        assert 0.0 <= record.tail_waste < 1.0
        by_request = record.by_request()
        assert sum(pages.logical for pages in by_request.values()) == record.pages_logical
        assert all(pages.physical <= pages.logical for pages in by_request.values())
    assert sum(len(record.moved(MoveKind.COPY)) for record in watched.records) == watched.stats["num_page_copies"] > 0
    assert sum(len(record.evicted) for record in watched.records) == watched.stats["num_evictions"] > 0
    assert sum(record.prefix_hit_tokens for record in watched.records) == watched.stats["prefix_hit_tokens"] > 0
    assert max(record.pages_saved for record in watched.records) == watched.stats["pages_saved_peak"]
    assert watched.stats["tail_waste_mean"] == pytest.approx(
        sum(record.tail_waste for record in watched.records) / len(watched.records)
    )


def test_saved_by_sharing_is_one_less_the_inverse_of_the_mean_of_logical_over_physical():
    watched = Watched(40, caching=False)
    watched.add(range(8), 4, n=4)
    watched.run()
    # The prompt's two pages are shared by four; then each sample has a page of its own: 8 / 2, then 12 / 6.
    assert [(r.pages_logical, r.pages_used) for r in watched.records] == [(8, 2), (12, 6), (12, 6), (12, 6)]
    assert watched.records[0].ref_counts == {4: 2}
    assert watched.records[1].ref_counts == {1: 4, 4: 2}
    assert watched.stats["sharing_saved"] == pytest.approx(1 - 1 / ((4 + 2 + 2 + 2) / 4))


def test_a_record_is_frozen_and_nothing_is_recorded_unless_asked_for():
    watched = Watched()
    watched.add(range(5), 2)
    watched.run()
    with pytest.raises(dataclasses.FrozenInstanceError):
        watched.records[0].step = 7  # pyright: ignore[reportAttributeAccessIssue]
    plain = Engine(
        SchedulerConfig(max_model_len=32), CacheConfig(num_pages=8, page_size=4), Device(Ticks()), vocab_size=9
    )
    assert plain.recorder is None
    assert plain.scheduler.cache.supply.on_evict is None
