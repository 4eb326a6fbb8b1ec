"""An engine over the oracle executor, watched at every step.

Lives here: Rig, which adds, steps, aborts and drains, and asserts I1 to I7 and the counters as it goes.
Promises: whatever a Rig lets finish is equal to the cache-free oracle (see clients.py).
Must not know: which fault a test is after.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from clients import Clients
from oracle_executor import GARBAGE, OracleExecutor, cells_of

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.plan import SchedulerOutput, SequenceDelta, StepResult
from jpaged.core.requests.request import FinishReason, Request, RequestMetrics, beam_params
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams

VOCAB_SIZE = 16
COUNTERS = (
    "num_steps",
    "num_tokens_computed",
    "num_tokens_sampled",
    "num_running_peak",
    "num_preemptions_recompute",
    "num_preemptions_swap",
    "pages_used_peak",
    "prefix_hit_tokens",
    "prefix_hit_tokens_resumed",
    "num_page_copies",
    "num_evictions",
    "num_pages_swapped_out",
    "num_pages_swapped_in",
    "num_requests_refused",
)


class StepClock:
    """A clock that moves by one with every look at it."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 1.0
        return self.time


class Rig:
    """An Engine on a tiny pool, and everything its clients have seen; `options` are fields of the engine's configs.

    `overlap`: each plan is made before the result of the one before it has been taken in.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        budget: int = 64,
        threshold: int | None = None,
        prefix_caching: bool = True,
        vocab_size: int = VOCAB_SIZE,
        max_num_waiting: int | None = None,
        overlap: bool = False,
        **options: Any,
    ) -> None:
        self.overlap = overlap
        self._pending: list[tuple[SchedulerOutput, StepResult]] = []
        options = {
            "num_pages": num_pages,
            "page_size": page_size,
            "watermark": 0.0,
            "enable_prefix_caching": prefix_caching,
            "max_num_seqs": 8,
            "max_num_batched_tokens": budget,
            "long_prefill_token_threshold": threshold,
            **options,
        }
        options["max_model_len"] = options.get("max_model_len") or max(2, num_pages * page_size)
        cache_fields = {field.name for field in fields(CacheConfig)}
        cache_config = CacheConfig(**{k: v for k, v in options.items() if k in cache_fields})
        scheduler_config = SchedulerConfig(**{k: v for k, v in options.items() if k not in cache_fields})
        self.executor = OracleExecutor(num_pages, page_size, vocab_size, cache_config.num_host_pages)
        self.executor.before_execute = self._check_plan
        self.engine = Engine(
            scheduler_config,
            cache_config,
            self.executor,
            vocab_size=vocab_size,
            clock=StepClock(),
            max_num_waiting=max_num_waiting,
        )
        self.scheduler = self.engine.scheduler
        self.cache = self.scheduler.cache
        self.clients = Clients(page_size, vocab_size)
        self.tracks, self.events = self.clients.tracks, self.clients.events
        self.prompt_logprobs = self.clients.prompt_logprobs
        self.metrics: dict[str, RequestMetrics] = {}
        self._counters = self.stats

    @property
    def stats(self) -> dict[str, Any]:
        """The engine's numbers now."""
        return dict(self.engine.stats_dict())

    @property
    def pinned(self) -> dict[str, list[int]]:
        """The pages of each pinned prefix."""
        return self.cache.prefixes.pinned if self.cache.prefixes else {}

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int | None = 4,
        *,
        request_id: str | None = None,
        seed: int = 0,
        eos: tuple[int, ...] = (),
        salt: str | None = None,
        priority: int = 0,
        beam: BeamSearchParams | None = None,
        **params: Any,
    ) -> str:
        """Add a request (greedy unless n > 1 or a temperature is given; or a beam search) and return its id."""
        request_id = request_id or f"r{len(self.metrics)}"
        params.setdefault("temperature", 0.0 if params.get("n", 1) == 1 else 1.0)
        sampling = SamplingParams(max_tokens=max_tokens, **params) if beam is None else beam_params(beam, len(eos))
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(prompt),
            params=sampling,
            beam=beam,
            priority=priority,
            seed=seed,
            arrival=self.engine.clock.now(),
            eos_token_ids=eos,
            cache_salt=salt,
        )
        self.engine.add(request)
        metrics = self.engine.metrics(request_id)
        assert metrics is not None
        self.metrics[request_id] = metrics
        self.clients.add(request, self.engine._groups[request_id].max_len)
        return request_id

    def step(self, times: int = 1) -> list[SequenceDelta]:
        """Run so many steps, check everything after each, and return the last one's deltas."""
        deltas: list[SequenceDelta] = []
        for _ in range(times):
            deltas = self._overlapped_step() if self.overlap else self.engine.step()
            self.clients.take(deltas)
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

    def preempt_in_next_step(self) -> None:
        """Let the next plan begin with the preemption of the newest running group, whatever the room."""
        schedule = self.scheduler._schedule_running

        def preempt_first(plan: Any) -> None:
            self.scheduler._schedule_running = schedule  # pyright: ignore[reportAttributeAccessIssue]
            self.scheduler._preempt_one_of(1, plan)
            schedule(plan)

        self.scheduler._schedule_running = preempt_first  # pyright: ignore[reportAttributeAccessIssue]

    def end(self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT) -> None:
        """End one sequence of a request, or all of it."""
        self.clients.take(self.engine.end(request_id, index, reason))
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
        for group in self.engine._groups.values():
            for sequence in group.sequences if group.beam else ():
                self.clients.learn(sequence.token_ids, group.request.cache_salt)
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
        assert self.cache.pool.num_free + idle + self.cache.num_pinned == self.cache.pool.num_pages
        assert self.scheduler.num_running == 0 and self.cache.num_used == self.cache.num_pinned
        assert self.stats["host_pages_free"] == self.stats["host_pages_total"]
        for track in self.tracks.values():
            assert track.finish_reason is not None, f"{track.request.request_id} never ended"

    def forget_unfinished(self) -> None:
        """After a failed step: nobody waits for an answer any more."""
        for key in [key for key, track in self.tracks.items() if track.finish_reason is None]:
            del self.tracks[key]

    def check_reset(self) -> None:
        """Assert the second half of I7 on an idle engine. Nothing is pinned or cached afterwards."""
        self.check_idle()
        for name in list(self.pinned):
            self.engine.unpin(name)
        self.engine.reset_prefix_cache()
        assert self.cache.pool.num_free == self.cache.pool.num_pages
        self.check()

    def _overlapped_step(self) -> list[SequenceDelta]:
        engine, deltas = self.engine, list[SequenceDelta]()
        if engine.has_unfinished:
            plan = self.scheduler.schedule(engine.clock.now())
            engine.stats.after_schedule(plan, self.scheduler)
            self._pending.append((plan, self.executor.submit(plan)))
        while len(self._pending) > engine.has_unfinished:
            deltas += self.scheduler.update(*self._pending.pop(0), engine.clock.now())
        for group in [group for group in engine._groups.values() if group.finished]:
            engine._forget_if_finished(group)
        return deltas

    def _check_plan(self, plan: SchedulerOutput) -> None:
        """Assert I3, I5 and I6 for a plan that was just made."""
        config = self.scheduler.config
        assert plan.rows or self._pending, "a step computes nothing"
        assert plan.num_tokens <= config.max_num_batched_tokens
        assert len(plan.rows) <= config.max_num_seqs and len(plan.samples) <= config.max_num_seqs
        newcomers = [a for a in plan.admitted if not self._is_seat_of(a.lane, a.request_id)]
        assert not (plan.preempted and newcomers), "what a preemption gave back went to a newcomer"
        live = {s.lane: s for group in self.scheduler.running for s in group.live}
        assert len({row.lane for row in plan.rows}) == len(plan.rows), "a sequence is scheduled twice"
        for slot, start, num_tokens in plan.rows:
            sequence = live[slot]  # the scheduled ones are running ones
            size = self.cache.page_size
            for page in sequence.pages[start // size : (start + num_tokens - 1) // size + 1]:
                # A prompt's last page is shared as soon as the plan is made, by siblings that are where its writer is.
                holders = [s for s in live.values() if page in s.pages]
                known = 1 if self.cache.supply is None else self.cache.supply.pool.ref_count(page)
                assert len(holders) == known
                assert {s.num_computed for s in holders} == {start + num_tokens}, f"shared page {page} is written"
                index = self.cache.prefix_cache
                assert index is None or page not in index, f"indexed page {page} is written"

    def _is_seat_of(self, lane: int, request_id: str) -> bool:
        """Whether a beam of the request has the lane already, and only takes over another's ids and pages."""
        row = self.executor.rows.get(lane)
        return row is not None and row.admitted.request_id == request_id

    def _check_index(self) -> None:
        """Assert I4 against memory: an indexed page is wholly written, and its hash is that of what it holds."""
        if self.cache.prefix_cache is None:
            return
        for page, digest in self.cache.prefix_cache._hash_of.items():
            cells = self.executor.page(page)
            assert GARBAGE not in cells, f"page {page} is indexed but not wholly written"
            assert digest in self.clients.texts, f"page {page} is indexed under a hash that no known text has"
            right = cells_of(self.clients.texts[digest])[-self.cache.page_size :]
            assert cells == right, f"page {page} is indexed under the hash of other contents"
