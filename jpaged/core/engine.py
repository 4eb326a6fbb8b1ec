"""One engine: requests in, deltas out, one step at a time.

Lives here: Engine, and the roles that it is given: Executor and Clock.
Promises: a request that is refused or aborted leaves no trace; a failed step ends every request it held.
Must not know: which executor or clock it has.
"""

import time
from typing import Protocol

from jpaged.config import CacheConfig, SchedulerConfig
from jpaged.core.admission import Fit, RequestLimits, check_request, pages_needed
from jpaged.core.output import SchedulerOutput, SequenceDelta, StepResult
from jpaged.core.request import FinishReason, Request, RequestMetrics
from jpaged.core.scheduler import Scheduler
from jpaged.core.sequence import SequenceGroup
from jpaged.core.stats import EngineStats, as_dict
from jpaged.core.step_records import StepRecorder


class Executor(Protocol):
    """Runs a plan: on a device, or in a simulation."""

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """What the plan's samples gave. Returns when the host has the ids."""
        ...


class Clock(Protocol):
    """Tells the time, in seconds."""

    def now(self) -> float:
        """Seconds since some fixed moment; never falls."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.perf_counter()


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
    ) -> None:
        self.scheduler = Scheduler(scheduler_config, cache_config)
        self.executor = executor
        self.clock = clock or WallClock()
        self.stats = EngineStats()
        self.recorder = StepRecorder(self.scheduler) if record_steps else None
        self.limits = RequestLimits(
            vocab_size=vocab_size,
            max_model_len=scheduler_config.max_model_len,
            max_num_seqs=scheduler_config.max_num_seqs,
            num_pages=self.scheduler.cache.pool.num_pages,
            page_size=cache_config.page_size,
            max_num_waiting=max_num_waiting,
        )
        self._groups: dict[str, SequenceGroup] = {}
        self._num_added = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is still at work."""
        return self.scheduler.has_unfinished

    def check(self, request: Request) -> None:
        """Raise ValueError if the request can never be served, or cannot be taken now."""
        self._check(request)

    def add(self, request: Request) -> None:
        """Take a request in. Raises ValueError, and changes nothing but a counter, if it cannot be served."""
        try:
            fit = self._check(request)
        except ValueError:
            self.stats.num_requests_refused += 1
            raise
        group = SequenceGroup(request, self._num_added, self.limits.page_size, fit.max_len, fit.width)
        self._num_added += 1
        self._groups[request.request_id] = group
        self.scheduler.add(group)

    def abort(self, request_id: str) -> list[SequenceDelta]:
        """End a request now, wherever it stands; an unknown or finished id is no error. Returns its last deltas."""
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

        If the step fails, every unfinished request is aborted before the exception goes on.
        """
        if not self.scheduler.has_unfinished:
            return []
        start = self.clock.now()
        try:
            plan = self.scheduler.schedule(start)
            self.stats.after_schedule(plan, self.scheduler)
            if self.recorder is not None:
                self.recorder.record(plan, start)
            scheduled = self.clock.now()
            result = self.executor.execute(plan)
            executed = self.clock.now()
            deltas = self.scheduler.update(plan, result, executed)
        except BaseException:
            self.abort_all()
            raise
        for delta in deltas:
            group = self._groups.get(delta.request_id)
            if group is not None and delta.finish_reason is not None:
                self._forget_if_finished(group)
        self.stats.host_time += (scheduled - start) + (self.clock.now() - executed)
        return deltas

    def abort_all(self) -> None:
        """End every request, and forget the plans in flight and all that is cached: after a failure it may be gone."""
        self.scheduler.forget_plans()
        for request_id in list(self._groups):
            self.abort(request_id)
        cache = self.scheduler.cache
        for name in list(cache.pinned):
            cache.unpin(name)
        cache.reset_prefix_cache()

    def pin(self, name: str, token_ids: tuple[int, ...], cache_salt: str | None = None) -> int:
        """Hold the cached pages of a prefix until `unpin(name)`; returns how many of its tokens they hold.

        Raises ValueError, and holds nothing, if an unfinished request could then never end.
        """
        cache = self.scheduler.cache
        num_tokens = cache.pin(name, token_ids, cache_salt)
        room = cache.pool.num_pages - cache.num_pinned
        for group in self._groups.values():
            prompt_len = len(group.request.prompt_token_ids)
            need = pages_needed(prompt_len, group.max_len, group.width, cache.page_size)
            if need > room:
                cache.unpin(name)
                raise ValueError(
                    f"prefix {name!r} would leave {room} pages, and request {group.request.request_id!r}, which still "
                    f"runs, may need {need}; pin a shorter prefix, or pin it later"
                )
        return num_tokens

    def unpin(self, name: str) -> None:
        """Let go of a pinned prefix; its pages stay cached. Raises ValueError if there is none of that name."""
        self.scheduler.cache.unpin(name)

    def metrics(self, request_id: str) -> RequestMetrics | None:
        """The metrics of a live request: kept up to date, and complete once it has finished. None if it is unknown."""
        group = self._groups.get(request_id)
        return None if group is None else group.metrics

    def stats_dict(self) -> dict[str, float | int | None]:
        """The numbers of the host core; see stats.py."""
        return as_dict(self.stats, self.scheduler)

    def _check(self, request: Request) -> Fit:
        if request.request_id in self._groups:
            raise ValueError(f"request_id={request.request_id!r}: a request with this id is still running")
        if self.limits.max_num_waiting is not None:
            self._check_queue(request.width, self.limits.max_num_waiting)
        return check_request(request, self.limits, self.scheduler.cache.num_pinned)

    def _check_queue(self, n: int, limit: int) -> None:
        if n > limit:
            raise ValueError(f"n={n}: at most max_num_waiting={limit} sequences may wait; lower n")
        waiting = sum(len(group.unfinished) for group in self.scheduler.waiting)
        if waiting + n > limit:
            raise ValueError(f"{waiting} sequences wait already: at most max_num_waiting={limit} may; try again later")

    def _forget_if_finished(self, group: SequenceGroup) -> None:
        if group.finished and self._groups.pop(group.request.request_id, None) is not None:
            self.stats.after_finish(group.metrics)
