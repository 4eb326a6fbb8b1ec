"""One engine: requests in, deltas out, one step at a time.

A request that is refused or aborted leaves no trace; a failed step ends every request it held.
"""

from collections import deque
from typing import Any

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.cache.prefixes import Prefixes
from jpaged.core.errors import REFUSALS, QueueFull, RequestRefused
from jpaged.core.executor import Clock, Executor, WallClock
from jpaged.core.observe.stats import EngineStats, as_dict
from jpaged.core.observe.step_records import StepRecorder
from jpaged.core.plan import PageMove, SchedulerOutput, SequenceDelta
from jpaged.core.requests.handoff import KVHandoff
from jpaged.core.requests.request import FinishReason, Request, RequestMetrics
from jpaged.core.requests.sequence import SequenceGroup
from jpaged.core.scheduling.admission import Admission, RequestLimits, check_request, pages_needed
from jpaged.core.scheduling.decode_ahead import DecodeAhead, DecodeStep
from jpaged.core.scheduling.kv_transfer import KVTransfer
from jpaged.core.scheduling.lookahead import must_wait, sequences_to_continue
from jpaged.core.scheduling.scheduler import Scheduler


class Engine:
    """A scheduler, an executor and a clock, wired."""

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        executor: Executor,
        *,
        vocab_size: int,
        clock: Clock | None = None,
        max_num_waiting: int | None = None,
        record_steps: bool = False,
        overlap: bool = True,
    ) -> None:
        self.scheduler = Scheduler(scheduler_config, cache_config)
        self.executor = executor
        self.clock = clock or WallClock()
        self.stats = EngineStats()
        self.recorder = StepRecorder(self.scheduler) if record_steps else None
        cache = self.scheduler.cache
        self.limits = RequestLimits(
            vocab_size=vocab_size,
            max_model_len=scheduler_config.max_model_len,
            max_num_seqs=scheduler_config.max_num_seqs,
            num_pages=cache.pool.num_pages,
            page_size=cache_config.page_size,
            max_num_waiting=max_num_waiting,
            most_together=cache.most_together,
        )
        self._groups: dict[str, SequenceGroup] = {}
        self._num_added = 0
        # A record is of one plan at a time, with every id before it known.
        self._overlap = overlap and not record_steps
        self._in_flight: deque[tuple[SchedulerOutput, Any]] = deque()
        self.schedule_time = self.update_time = 0.0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is still at work."""
        return self.scheduler.has_unfinished

    @property
    def plans_ahead(self) -> bool:
        """Whether a step may be planned before the result of the one before it has come."""
        return self._overlap and self.executor.overlaps

    def check(self, request: Request, ahead: int = 0) -> Admission:
        """How the request can be run, if `ahead` sequences of others are added before it.

        Raises RequestRefused if it can never be served, QueueFull if it cannot be taken now; both are counted.
        """
        try:
            admission = self.admission_of(request)
            if self.limits.max_num_waiting is not None:
                self._check_queue(request.width, ahead, self.limits.max_num_waiting)
        except REFUSALS:
            self.stats.num_requests_refused += 1
            raise
        return admission

    def admission_of(self, request: Request) -> Admission:
        """How the request can be run, whoever waits. Raises RequestRefused."""
        if request.request_id in self._groups:
            raise RequestRefused(f"request_id={request.request_id!r}: a request with this id is still running")
        return check_request(request, self.limits, self.scheduler.cache.num_pinned)

    def add(self, request: Request, admission: Admission | None = None) -> RequestMetrics:
        """Add a request; its metrics, kept up to date. `admission`: what `check` has just said, if it was asked.

        Raises what `check` raises, and then changes nothing but a counter.
        """
        group = self._new_group(request, admission or self.check(request))
        self.scheduler.add(group)
        return group.metrics

    def abort(self, request_id: str) -> list[SequenceDelta]:
        """End a request now, wherever it is; an unknown or finished id is no error. Returns its last deltas."""
        return self.end(request_id, None, FinishReason.ABORT)

    def end(
        self, request_id: str, index: int | None, reason: FinishReason, stop_reason: int | str | None = None
    ) -> list[SequenceDelta]:
        """End the sequence `index` of a request (None: all), for example because its text holds a stop string."""
        group = self._groups.get(request_id)
        if group is None:
            return []
        ended = self.scheduler.end(group, index, reason, stop_reason, self.clock.now())
        self._forget_if_finished(group)
        return [
            SequenceDelta(request_id, s.index, finish_reason=reason, stop_reason=stop_reason) for s in ended
        ]  # fmt: skip

    def step(self) -> list[SequenceDelta]:
        """Run one step and return what it gave; an empty list when there is nothing to do.

        Where it changes nothing, the next step is planned and handed over before this one's result has come, so that
        the device never waits for the host. If the step fails, every unfinished request is aborted before the
        exception goes on.
        """
        if not self.scheduler.has_unfinished:
            self._forget_plans()
            return []
        if not self._in_flight and must_wait(self.scheduler):
            return []
        try:
            if not self._in_flight:
                self._submit()
            if self.plans_ahead:
                continuing = sequences_to_continue(self.scheduler, self._in_flight[-1][0])
                for sequence in continuing:
                    sequence.expect()
                if continuing:
                    self._submit()
            plan, started = self._in_flight.popleft()
            result = self.executor.collect(started)
            collected = self.clock.now()
            deltas = self.scheduler.update(plan, result, collected)
        except BaseException:
            self.abort_all()
            raise
        for delta in deltas:
            if delta.finish_reason is not None and (group := self._groups.get(delta.request_id)) is not None:
                self._forget_if_finished(group)
        if not self.scheduler.has_unfinished:
            self._forget_plans()
        self.update_time += self.clock.now() - collected
        self.stats.host_time = self.schedule_time + self.update_time
        return deltas

    def apply_ahead(self, ahead: DecodeAhead, times: list[float], token_id: int) -> list[DecodeStep]:
        """Take the first of the steps that `decode_ahead` found, which nobody has planned; see DecodeAhead.apply."""
        steps, rows, page_size = ahead.apply(times, token_id), len(ahead.lanes), self.limits.page_size
        for step in steps:
            used = step.num_used
            self.stats.after_step(rows, rows, used, used * page_size, step.logical_pages, step.tail_slots)
        return steps

    def _submit(self) -> None:
        """Plan a step and start it."""
        start = self.clock.now()
        plan = self.scheduler.schedule(start)
        self.stats.after_schedule(plan, self.scheduler)
        if self.recorder is not None:
            self.recorder.record(plan, start)
        self.schedule_time += self.clock.now() - start
        self.stats.host_time = self.schedule_time + self.update_time
        self._in_flight.append((plan, self.executor.submit(plan)))

    def _forget_plans(self) -> None:
        self.scheduler.forget_plans()
        self._in_flight.clear()

    def abort_all(self) -> None:
        """End every request, and forget the plans in flight and all that is cached: after a failure it may be gone."""
        self._forget_plans()
        for request_id in list(self._groups):
            self.abort(request_id)
        prefixes, transfer = self.scheduler.cache.prefixes, self.scheduler.kv_transfer
        for name in list(transfer.outgoing) if transfer else ():
            self.sent(name)
        if prefixes is not None:
            for name in list(prefixes.pinned):
                prefixes.unpin(name)
        self.reset_prefix_cache()

    def send(self, request_id: str) -> KVHandoff:
        """Let a request go to another engine, between two steps; this one forgets it, but holds its pages until `sent`.

        Raises ValueError, and changes nothing, if it is unknown or cannot leave now.
        """
        group = self._groups.get(request_id)
        if group is None:
            raise ValueError(f"request_id={request_id!r}: no such request is here to be handed over")
        self._transfer()
        handoff = self.scheduler.send(group)
        del self._groups[request_id]
        return handoff

    def sent(self, request_id: str) -> None:
        """The pages of a request that was sent have been copied, or are not wanted any more: let go of them."""
        self._transfer().finish_send(request_id)

    def can_receive(self, handoff: KVHandoff) -> bool:
        """Whether `receive` would find room now."""
        self._transfer()
        return self.scheduler.can_receive(handoff)

    def receive(self, handoff: KVHandoff) -> tuple[PageMove, ...]:
        """Give a request from another engine rows and pages here; returns what must be copied before `received`.

        The caller has asked `can_receive`. Raises ValueError if it can never be served here.
        """
        admission = self.admission_of(handoff.request)
        if handoff.page_size != self.limits.page_size or admission.width < handoff.request.width:
            raise RequestRefused(
                f"request {handoff.request.request_id!r} has pages of {handoff.page_size} tokens and "
                f"{handoff.request.width} sequences; here pages have {self.limits.page_size} tokens and "
                f"{admission.width} fit at once: give both engines the same page_size, and this one more pages"
            )
        return self._transfer().start_receive(self._new_group(handoff.request, admission), handoff)

    def received(self, request_id: str) -> None:
        """The pages of a request that arrives have been copied: it runs from the next step on."""
        group = self._groups.get(request_id)
        # It may have been ended meanwhile.
        if group is not None:
            self._transfer().finish_receive(group)
            self.scheduler.run(group)

    def _transfer(self) -> KVTransfer:
        if self.scheduler.kv_transfer is None:
            raise ValueError("no request can change engines here: it takes reservation='none' and continuous batching")
        return self.scheduler.kv_transfer

    def pin(self, name: str, token_ids: tuple[int, ...], cache_salt: str | None = None) -> int:
        """Hold the cached pages of a prefix until `unpin(name)`; returns how many of its tokens they hold.

        Raises ValueError, and holds nothing, if an unfinished request could then never end.
        """
        cache, prefixes = self.scheduler.cache, self._prefixes()
        num_tokens = prefixes.pin(name, token_ids, cache_salt)
        room = cache.pool.num_pages - cache.num_pinned
        for group in self._groups.values():
            prompt_len = len(group.request.prompt_token_ids)
            need = pages_needed(prompt_len, group.max_len, group.width, cache.page_size)
            if need > room:
                prefixes.unpin(name)
                raise ValueError(
                    f"prefix {name!r} would leave {room} pages, and request {group.request.request_id!r}, which still "
                    f"runs, may need {need}; pin a shorter prefix, or pin it later"
                )
        return num_tokens

    def unpin(self, name: str) -> None:
        """Let go of a pinned prefix; its pages stay cached. Raises ValueError if there is none of that name."""
        self._prefixes().unpin(name)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""
        if self.scheduler.cache.prefixes is not None:
            self.scheduler.cache.prefixes.reset()

    def check_pin(self, name: str) -> None:
        """Raise ValueError if no prefix can be pinned under this name."""
        self._prefixes().check_pin(name)

    def _prefixes(self) -> Prefixes:
        if self.scheduler.cache.prefixes is None:
            raise ValueError("a prefix can only be pinned with reservation='none' and enable_prefix_caching=True")
        return self.scheduler.cache.prefixes

    def metrics(self, request_id: str) -> RequestMetrics | None:
        """The metrics of a live request: kept up to date, and complete once it has finished. None if it is unknown."""
        group = self._groups.get(request_id)
        return None if group is None else group.metrics

    def stats_dict(self) -> dict[str, float | int | None]:
        """The numbers of the host core; see stats.py."""
        return as_dict(self.stats, self.scheduler)

    def _new_group(self, request: Request, admission: Admission) -> SequenceGroup:
        group = SequenceGroup(request, self._num_added, admission.max_len, admission.width)
        self._num_added += 1
        self._groups[request.request_id] = group
        return group

    def _check_queue(self, n: int, ahead: int, limit: int) -> None:
        if ahead + n > limit:
            what = f"n={n}" if not ahead else f"{ahead + n} sequences in one call"
            raise RequestRefused(
                f"{what}: at most max_num_waiting={limit} sequences may wait; lower n or split the call"
            )
        waiting = sum(len(group.unfinished) for group in self.scheduler.waiting)
        if waiting + ahead + n > limit:
            raise QueueFull(f"{waiting} sequences wait already: at most max_num_waiting={limit} may; try again later")

    def _forget_if_finished(self, group: SequenceGroup) -> None:
        if group.finished and self._groups.pop(group.request.request_id, None) is not None:
            self.stats.after_finish(group.metrics)
