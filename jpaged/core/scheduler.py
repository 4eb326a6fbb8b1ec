"""What runs next: continuous batching with chunked prefill under one token budget.

Lives here: Scheduler: schedule() -> SchedulerOutput, update(plan, result) -> deltas.
Promises: the first group in the policy's order always advances; a group is preempted whole; a plan exceeds neither
the budget nor the rows nor the pages.
Must not know: arrays, executors, text.
"""

from bisect import insort
from collections import deque

from jpaged.config import CacheConfig, SchedulerConfig, check_pool
from jpaged.core import policy
from jpaged.core.block_table import pages_for
from jpaged.core.cache_manager import CacheManager
from jpaged.core.output import SchedulerOutput, SequenceDelta, StepResult
from jpaged.core.plan_builder import PlanBuilder
from jpaged.core.request import FinishReason
from jpaged.core.sequence import Sequence, SequenceGroup, SequenceStatus


class Scheduler:
    """The waiting and the running groups of an engine, both in the policy's order."""

    def __init__(self, config: SchedulerConfig, cache_config: CacheConfig) -> None:
        check_pool(cache_config, config)
        self.config = config
        self.cache = CacheManager(cache_config)
        self.watermark_pages = int(cache_config.watermark * self.cache.pool.num_pages)
        self.waiting: list[SequenceGroup] = []
        self.running: list[SequenceGroup] = []
        self.num_steps = 0
        self.num_preemptions = 0
        self.prefix_hit_tokens = 0
        self.resumed_hit_tokens = 0
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._in_flight: deque[PlanBuilder] = deque()

    @property
    def has_unfinished(self) -> bool:
        """Whether any group waits or runs."""
        return bool(self.waiting or self.running)

    @property
    def num_running(self) -> int:
        """Sequences that hold a row slot."""
        return self.config.max_num_seqs - len(self._free_slots)

    def add(self, group: SequenceGroup) -> None:
        """Let a group wait for its turn. The caller has checked that it can run at all."""
        insort(self.waiting, group, key=policy.fcfs)

    def schedule(self, now: float = 0.0) -> SchedulerOutput:
        """The plan of the next step. Every plan wants one `update`, in the same order; at most two may wait for it."""
        # A row slot tells a stale result from a live one only if its sequence cannot have left and come back meanwhile.
        assert len(self._in_flight) < 2, "two plans wait for their update already"
        plan = PlanBuilder(self.num_steps, self.config.max_num_batched_tokens)
        self._schedule_running(plan)
        if not plan.preempted:
            self._admit_waiting(plan, now)
        assert plan.rows or self._in_flight or not self.has_unfinished, "a step must compute something"
        self.num_steps += 1
        self._in_flight.append(plan)
        return plan.finish()

    def update(self, plan: SchedulerOutput, result: StepResult, now: float = 0.0) -> list[SequenceDelta]:
        """Take in what a step gave: index written pages, append tokens, end what has ended."""
        made = self._in_flight.popleft()
        assert made.step == plan.step, "plans are updated in the order in which they were made"
        assert len(result.token_ids) == len(plan.samples), "a result has one id a sample"
        for row, target in zip(plan.rows, made.row_targets, strict=True):
            if target.sequence.row_slot == target.row_slot:
                self.cache.commit(target.group, target.sequence, row.start + row.num_tokens)
        self._keep_prompt_logprobs(made, result)
        deltas: list[SequenceDelta] = []
        for i, (target, token_id) in enumerate(zip(made.sample_targets, result.token_ids, strict=True)):
            group, sequence, row_slot = target
            if sequence.row_slot != row_slot:
                continue  # it ended, or was aborted, while the step ran
            sequence.token_ids.append(token_id)
            first = group.metrics.first_token is None
            if first:
                group.metrics.first_token = now
            reason, stop_reason = end_of(group, sequence)
            if reason is not None:
                self._end(group, sequence, reason, stop_reason, now)
            logprobs = result.logprobs[i] if result.logprobs is not None else None
            asked = first and group.request.params.prompt_logprobs is not None
            prompt_logprobs = tuple(group.prompt_logprobs) if asked else None
            deltas.append(
                SequenceDelta(
                    group.request.request_id, sequence.index, token_id, logprobs, reason, stop_reason, prompt_logprobs
                )
            )
        self._drop_finished()
        return deltas

    def end(
        self,
        group: SequenceGroup,
        index: int | None,
        reason: FinishReason,
        stop_reason: int | str | None = None,
        now: float = 0.0,
    ) -> list[Sequence]:
        """End one sequence of a group (None: all that still live); its pages are back at once. Returns who ended."""
        ended = [s for s in group.sequences if not s.finished and index in (None, s.index)]
        for sequence in ended:
            self._end(group, sequence, reason, stop_reason, now)
        if group.finished and group in self.waiting:
            self.waiting.remove(group)
        self._drop_finished()
        return ended

    def forget_plans(self) -> None:
        """Drop the plans that no result will come for, after their execution failed."""
        self._in_flight.clear()

    def check(self) -> None:
        """Assert the invariants that hold between steps (I1 to I5, I7)."""
        live = [s for group in self.running for s in group.live]
        self.cache.check(live)
        slots = [s.row_slot for s in live]
        assert None not in slots, "a running sequence has no row slot"
        assert sorted([*self._free_slots, *(s for s in slots if s is not None)]) == list(
            range(self.config.max_num_seqs)
        ), "a row slot is lost or given twice"
        for group in (*self.running, *self.waiting):
            holders = group.live if group.status is SequenceStatus.RUNNING else []
            _check_group(group, holders if group.forked else holders[:1], self.cache.page_size)
        for groups in (self.running, self.waiting):
            assert groups == sorted(groups, key=policy.fcfs), "a group stands behind a later one"
        if not self.running:
            assert self.cache.num_available == self.cache.pool.num_pages, "pages are held while nothing runs"

    def _schedule_running(self, plan: PlanBuilder) -> None:
        i = 0
        while i < len(self.running) and plan.budget:
            group = self.running[i]
            writes = self._wanted(group, plan)
            while (need := self.cache.pages_to_grow(writes)) and need > self.cache.num_available:
                # The victim is the last in the order: never one that this step has already scheduled.
                victim = self._preempt(plan)
                if victim is group:
                    break
            else:
                self._place(group, writes, plan)
            i += 1

    def _admit_waiting(self, plan: PlanBuilder, now: float) -> None:
        while self.waiting and plan.budget:
            group = self.waiting[0]
            live = group.live
            reserve = self.watermark_pages if self.running else 0
            if len(live) > len(self._free_slots) or not self.cache.admit(group, reserve):
                return
            self.waiting.pop(0)
            insort(self.running, group, key=policy.fcfs)
            group.status = SequenceStatus.RUNNING
            if group.metrics.first_scheduled is None:
                group.metrics.first_scheduled = now
            for sequence in live:
                sequence.row_slot = self._free_slots.pop()
                sequence.status = SequenceStatus.RUNNING
                plan.admit(group, sequence)
            self._count_hits(group, live[0].num_computed)
            self._place(group, self._wanted(group, plan), plan)

    def _count_hits(self, group: SequenceGroup, num_tokens: int) -> None:
        # What a resumed group finds of its own is no saving, so it is counted apart.
        if group.metrics.num_preemptions:
            self.resumed_hit_tokens += num_tokens
        else:
            self.prefix_hit_tokens += num_tokens
            group.metrics.num_cached_tokens = num_tokens

    def _wanted(self, group: SequenceGroup, plan: PlanBuilder) -> list[tuple[Sequence, int]]:
        """Each sequence of the group that computes in this step, and the position up to which it does."""
        limit = self.config.long_prefill_token_threshold or plan.budget
        if not group.forked:
            leader = group.live[0]
            if leader.num_computed < leader.prompt_len:
                return [(leader, min(leader.num_computed + min(limit, plan.budget), leader.prompt_len))]
            self._fork(group, plan)
        budget = plan.budget
        writes: list[tuple[Sequence, int]] = []
        for sequence in group.live:
            count = min(len(sequence.token_ids) - sequence.num_computed, limit, budget)
            if count > 0:
                writes.append((sequence, sequence.num_computed + count))
                budget -= count
        return writes

    def _place(self, group: SequenceGroup, writes: list[tuple[Sequence, int]], plan: PlanBuilder) -> None:
        for sequence, end in writes:
            column, copy = self.cache.grow(sequence, end)
            if copy is not None:
                plan.copies.append(copy)
            plan.grant(sequence, column)
            row = plan.compute(group, sequence, end)
            if group.forked:
                if end == len(sequence.token_ids):
                    plan.sample(row, group, sequence)
            elif end == sequence.prompt_len:
                self._fork(group, plan)
                for sibling in group.live if sequence.num_outputs == 0 else ():
                    plan.sample(row, group, sibling)

    def _fork(self, group: SequenceGroup, plan: PlanBuilder) -> None:
        leader, *others = group.live
        for sibling in others:
            self.cache.fork(leader, sibling)
            plan.grant(sibling, 0)
        group.forked = True

    def _preempt(self, plan: PlanBuilder) -> SequenceGroup:
        group = self.running.pop()
        live = group.live
        for sequence in live:
            self._leave(sequence)
            sequence.status = SequenceStatus.WAITING
        group.forked = len(live) == 1
        group.status = SequenceStatus.WAITING
        group.metrics.num_preemptions += 1
        self.num_preemptions += 1
        insort(self.waiting, group, key=policy.fcfs)
        plan.preempted.append(group.request.request_id)
        return group

    def _end(
        self,
        group: SequenceGroup,
        sequence: Sequence,
        reason: FinishReason,
        stop_reason: int | str | None,
        now: float,
    ) -> None:
        self._leave(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        sequence.stop_reason = stop_reason
        if group.finished:
            group.status = SequenceStatus.FINISHED
            group.metrics.finished = now

    def _leave(self, sequence: Sequence) -> None:
        self.cache.release(sequence)
        if sequence.row_slot is not None:
            self._free_slots.append(sequence.row_slot)
            sequence.row_slot = None

    def _drop_finished(self) -> None:
        if any(group.status is SequenceStatus.FINISHED for group in self.running):
            self.running = [group for group in self.running if group.status is not SequenceStatus.FINISHED]

    def _keep_prompt_logprobs(self, made: PlanBuilder, result: StepResult) -> None:
        if not result.prompt_logprobs:
            return
        groups = {target.row_slot: target.group for target in made.row_targets}
        for part in result.prompt_logprobs:
            kept = groups[part.row_slot].prompt_logprobs
            # A resumed prompt gives the same entries again: they replace the first ones.
            kept[part.start - 1 : part.start - 1 + len(part.entries)] = part.entries


def _check_group(group: SequenceGroup, holders: list[Sequence], page_size: int) -> None:
    for sequence in group.sequences:
        if sequence not in holders:
            assert not sequence.table.pages and sequence.num_computed == 0, "pages are held by one who does not run"
        assert sequence.num_computed <= min(len(sequence.token_ids), sequence.table.capacity)
        assert len(sequence.table) <= pages_for(len(sequence.token_ids), page_size), "a page is held for no token"
        assert sequence.row_slot is None or (group.status is SequenceStatus.RUNNING and not sequence.finished)


def end_of(group: SequenceGroup, sequence: Sequence) -> tuple[FinishReason | None, int | None]:
    """Whether the sequence ends with its last token: the reason, and the stop token unless it is the model's own."""
    token_id = sequence.token_ids[-1]
    if token_id in group.stop_ids and sequence.num_outputs > group.request.params.min_tokens:
        asked = token_id in (group.request.params.stop_token_ids or ())
        return FinishReason.STOP, token_id if asked else None
    if len(sequence.token_ids) >= group.max_len:
        return FinishReason.LENGTH, None
    return None, None
