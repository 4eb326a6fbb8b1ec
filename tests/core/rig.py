"""An engine over the oracle executor, watched at every step.

Lives here: Rig, which adds, steps, aborts and drains, and asserts I1 to I7, ids, logprobs and counters as it goes.
Promises: whatever a Rig lets finish is equal to the cache-free oracle.
Must not know: which fault a test is after.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from oracle_executor import OracleExecutor, cells_of, oracle, oracle_prompt_logprobs

from jpaged.config import CacheConfig, SchedulerConfig
from jpaged.core.admission import check_request
from jpaged.core.engine import Engine
from jpaged.core.output import SchedulerOutput, SequenceDelta, StepResult, TokenLogprobs
from jpaged.core.prefix_cache import page_hash, root_hash
from jpaged.core.request import FinishReason, Request, RequestMetrics
from jpaged.core.sampling_params import SamplingParams

VOCAB_SIZE = 16
COUNTERS = (
    "num_steps",
    "num_tokens_computed",
    "num_tokens_sampled",
    "num_running_peak",
    "num_preemptions_recompute",
    "pages_used_peak",
    "prefix_hit_tokens",
    "prefix_hit_tokens_resumed",
    "num_page_copies",
    "num_evictions",
    "num_requests_refused",
)


class StepClock:
    """A clock that moves by one with every look at it."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 1.0
        return self.time


@dataclass(slots=True)
class Track:
    """What a client has seen of one sequence."""

    request: Request
    max_len: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    page_hashes: list[bytes] = field(default_factory=list)


class Rig:
    """An Engine on a tiny pool, and everything its clients have seen.

    `overlap`: each plan is made before the result of the one before it has been taken in.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        max_num_seqs: int = 8,
        budget: int = 64,
        max_model_len: int | None = None,
        threshold: int | None = None,
        prefix_caching: bool = True,
        watermark: float = 0.0,
        max_num_waiting: int | None = None,
        overlap: bool = False,
    ) -> None:
        self.overlap = overlap
        self._pending: list[tuple[SchedulerOutput, StepResult]] = []
        self.executor = OracleExecutor(num_pages, page_size, VOCAB_SIZE)
        self.executor.before_execute = self._check_plan
        self.engine = Engine(
            SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=budget,
                max_model_len=max_model_len or max(2, num_pages * page_size),
                long_prefill_token_threshold=threshold,
            ),
            CacheConfig(
                num_pages=num_pages,
                page_size=page_size,
                enable_prefix_caching=prefix_caching,
                watermark=watermark,
            ),
            self.executor,
            vocab_size=VOCAB_SIZE,
            clock=StepClock(),
            max_num_waiting=max_num_waiting,
        )
        self.scheduler = self.engine.scheduler
        self.cache = self.scheduler.cache
        self.tracks: dict[tuple[str, int], Track] = {}
        self.prompt_logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
        self.metrics: dict[str, RequestMetrics] = {}
        self.events: list[list[SequenceDelta]] = []
        self._texts: dict[bytes, tuple[int, ...]] = {}
        self._counters = self.stats

    @property
    def stats(self) -> dict[str, float | int]:
        """The engine's numbers now."""
        return self.engine.stats_dict()

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int | None = 4,
        *,
        request_id: str | None = None,
        seed: int = 0,
        eos: tuple[int, ...] = (),
        salt: str | None = None,
        **params: Any,
    ) -> str:
        """Add a request (greedy unless n > 1 or a temperature is given) and return its id."""
        request_id = request_id or f"r{len(self.metrics)}"
        params.setdefault("temperature", 0.0 if params.get("n", 1) == 1 else 1.0)
        sampling = SamplingParams(max_tokens=max_tokens, **params)
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(prompt),
            params=sampling,
            seed=seed,
            arrival=self.engine.clock.now(),
            eos_token_ids=eos,
            cache_salt=salt,
        )
        self.engine.add(request)
        metrics = self.engine.metrics(request_id)
        assert metrics is not None
        self.metrics[request_id] = metrics
        max_len = check_request(request, self.engine.limits)
        for index in range(sampling.n):
            self.tracks[request_id, index] = Track(request, max_len)
            self._learn(self.tracks[request_id, index])
        return request_id

    def step(self, times: int = 1) -> list[SequenceDelta]:
        """Run so many steps, check everything after each, and return the last one's deltas."""
        deltas: list[SequenceDelta] = []
        for _ in range(times):
            deltas = self._overlapped_step() if self.overlap else self.engine.step()
            self._take(deltas)
            self.check()
        return deltas

    def run(self, limit: int = 2000) -> None:
        """Step until nothing is left to do; fails if that takes more than `limit` steps."""
        for _ in range(limit):
            if not self.engine.has_unfinished and not self._pending:
                self.check_idle()
                return
            self.step()
        raise AssertionError(f"not idle after {limit} steps")

    def run_until_preempted(self, request_id: str) -> None:
        """Step until the request has been preempted; fails if it ends before."""
        while not self.metrics[request_id].num_preemptions:
            assert self.metrics[request_id].finished is None, f"{request_id} was never preempted"
            self.step()

    def end(self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT) -> None:
        """End one sequence of a request, or all of it."""
        self._take(self.engine.end(request_id, index, reason))
        self.check()

    def ids(self, request_id: str, index: int = 0) -> list[int]:
        """The ids that a client has of the sequence."""
        return self.tracks[request_id, index].token_ids

    def reason(self, request_id: str, index: int = 0) -> FinishReason | None:
        """Why the sequence ended, or None."""
        return self.tracks[request_id, index].finish_reason

    def check(self) -> None:
        """Assert what holds between steps: the core's own invariants, the index against memory, the counters."""
        self.scheduler.check()
        self._check_index()
        now = self.stats
        for name in COUNTERS:
            assert now[name] >= self._counters[name], f"{name} fell"
        self._counters = now

    def check_idle(self) -> None:
        """Assert I7: nothing is held but by the cache, and after a reset of it every page is free."""
        self.scheduler.check()
        assert not self.engine.has_unfinished
        idle = self.cache.prefix_cache.num_idle if self.cache.prefix_cache else 0
        assert self.cache.pool.num_free + idle == self.cache.pool.num_pages
        assert self.scheduler.num_running == 0 and self.cache.num_used == 0
        for track in self.tracks.values():
            assert track.finish_reason is not None, f"{track.request.request_id} never ended"

    def check_reset(self) -> None:
        """Assert the second half of I7 on an idle engine. The cache is empty afterwards."""
        self.check_idle()
        self.cache.reset_prefix_cache()
        assert self.cache.pool.num_free == self.cache.pool.num_pages
        self.check()

    def _overlapped_step(self) -> list[SequenceDelta]:
        engine, deltas = self.engine, list[SequenceDelta]()
        if engine.has_unfinished:
            plan = self.scheduler.schedule(engine.clock.now())
            engine.stats.after_schedule(plan, self.scheduler)
            self._pending.append((plan, self.executor.execute(plan)))
        while len(self._pending) > engine.has_unfinished:
            deltas += self.scheduler.update(*self._pending.pop(0), engine.clock.now())
        for group in [group for group in engine._groups.values() if group.finished]:
            engine._forget_if_finished(group)
        return deltas

    def _take(self, deltas: list[SequenceDelta]) -> None:
        self.events.append(deltas)
        for delta in deltas:
            track = self.tracks[delta.request_id, delta.index]
            assert track.finish_reason is None, "a delta came after the end"
            if delta.token_id is not None:
                track.token_ids.append(delta.token_id)
                track.logprobs.append(delta.logprobs)
                self._learn(track)
            if delta.prompt_logprobs is not None:
                assert delta.request_id not in self.prompt_logprobs, "prompt logprobs came twice"
                self.prompt_logprobs[delta.request_id] = delta.prompt_logprobs
            track.finish_reason, track.stop_reason = delta.finish_reason, delta.stop_reason
            if delta.finish_reason is not None:
                self._check_answer(track, delta.index)

    def _check_answer(self, track: Track, index: int) -> None:
        request = track.request
        right = oracle(request, index, track.max_len, VOCAB_SIZE)
        count = len(track.token_ids)
        assert track.token_ids == right.token_ids[:count], f"{request.request_id}/{index} differs from the oracle"
        assert track.logprobs == right.logprobs[:count]
        last = self.events[-1]
        ended_by_engine = any(
            d.request_id == request.request_id and d.index == index and d.token_id is not None for d in last
        )
        if ended_by_engine:
            assert count == len(right.token_ids), "it ended before or after its time"
            assert track.finish_reason == right.finish_reason
        if request.params.prompt_logprobs is not None and track.token_ids:
            assert list(self.prompt_logprobs[request.request_id]) == oracle_prompt_logprobs(request)

    def _check_plan(self, plan: SchedulerOutput) -> None:
        """Assert I3, I5 and I6 for a plan that was just made."""
        config = self.scheduler.config
        assert plan.rows or self._pending, "a step computes nothing"
        assert plan.num_tokens <= config.max_num_batched_tokens
        assert len(plan.rows) <= config.max_num_seqs and len(plan.samples) <= config.max_num_seqs
        assert not (plan.preempted and plan.admitted), "what a preemption gave back went to a newcomer"
        live = {s.row_slot: s for group in self.scheduler.running for s in group.live}
        assert len({row.row_slot for row in plan.rows}) == len(plan.rows), "a sequence is scheduled twice"
        for slot, start, num_tokens in plan.rows:
            sequence = live[slot]  # the scheduled ones are running ones
            size = self.cache.page_size
            for page in sequence.table.pages[start // size : (start + num_tokens - 1) // size + 1]:
                # A prompt's last page is shared as soon as the plan is made, by siblings that are where its writer is.
                holders = [s for s in live.values() if page in s.table.pages]
                assert len(holders) == self.cache.pool.ref_count(page)
                assert {s.num_computed for s in holders} == {start + num_tokens}, f"shared page {page} is written"
                index = self.cache.prefix_cache
                assert index is None or page not in index, f"indexed page {page} is written"

    def _check_index(self) -> None:
        """Assert I4 against memory: an indexed page is wholly written, and its hash is that of what it holds."""
        index, size = self.cache.prefix_cache, self.cache.page_size
        if index is None:
            return
        for page, digest in index._hash_of.items():
            cells = [self.executor.memory.get(page * size + offset) for offset in range(size)]
            assert None not in cells, f"page {page} is indexed but not wholly written"
            assert digest in self._texts, f"page {page} is indexed under a hash that no known text has"
            right = cells_of(self._texts[digest])[-size:]
            assert cells == right, f"page {page} is indexed under the hash of other contents"

    def _learn(self, track: Track) -> None:
        """Note the hash of every full page of the text that the track has by now, with the text up to there."""
        text, size = (*track.request.prompt_token_ids, *track.token_ids), self.cache.page_size
        while (end := (len(track.page_hashes) + 1) * size) <= len(text):
            parent = track.page_hashes[-1] if track.page_hashes else root_hash(track.request.cache_salt)
            track.page_hashes.append(page_hash(parent, text[end - size : end]))
            self._texts[track.page_hashes[-1]] = text[:end]
