"""What runs next: continuous batching with chunked prefill under one token budget.

There is no prefill phase and no decode phase: a sequence has known (or pending) tokens that are not computed yet, and
each step computes some of them; whoever has all of its own computed gets the next one sampled. A prompt, a chunk of
one, a resumed sequence and a decode step differ in how many those are alone.

The first group in the policy's order always advances; a group is preempted whole; a plan exceeds neither the budget
nor the lanes nor the pages.
"""

from bisect import insort
from collections import deque

from jpaged.config.options import CacheConfig, SchedulerConfig, check_pool
from jpaged.core.cache.memory_policy import make_cache
from jpaged.core.plan import SchedulerOutput, SequenceDelta, StepResult
from jpaged.core.requests.handoff import KVHandoff
from jpaged.core.requests.request import FinishReason
from jpaged.core.requests.sequence import Sequence, SequenceGroup, SequenceStatus
from jpaged.core.scheduling import policy
from jpaged.core.scheduling.integrity import check_groups
from jpaged.core.scheduling.kv_transfer import KVTransfer
from jpaged.core.scheduling.lanes import Lanes
from jpaged.core.scheduling.plan_builder import PlanBuilder
from jpaged.core.scheduling.static_batch import form_batch
from jpaged.core.scheduling.step_results import StepResults


class Scheduler:
    """The waiting and the running groups of an engine, both in the policy's order."""

    def __init__(self, config: SchedulerConfig, cache_config: CacheConfig) -> None:
        check_pool(cache_config, config)
        self.config = config
        self._rank = policy.ORDERS[config.scheduling_policy]
        self._admission = policy.load_policy("admission_policy", config.admission_policy, policy.ADMISSION)
        self._victim = policy.load_policy("victim_policy", config.victim_policy, policy.VICTIM)
        eviction = policy.load_policy("eviction_policy", config.eviction_policy, policy.EVICTION)
        self.cache = make_cache(cache_config, config.max_model_len, eviction)
        self.watermark_pages = int(cache_config.watermark * self.cache.pool.num_pages)
        self.waiting: list[SequenceGroup] = []
        self.running: list[SequenceGroup] = []
        self.num_steps = 0
        self.num_preemptions = 0
        self.num_preemptions_swap = 0
        self.prefix_hit_tokens = 0
        self.resumed_hit_tokens = 0
        self._num_swapped = 0
        self.lanes = Lanes(config.max_num_seqs)
        supply = self.cache.supply if config.batching != "static" else None
        self.kv_transfer = KVTransfer(supply, self.lanes, self.cache.page_size) if supply else None
        self._results = StepResults(self.cache, self.lanes)
        self._in_flight: deque[PlanBuilder] = deque()

    @property
    def has_unfinished(self) -> bool:
        """Whether any group waits or runs."""
        return bool(self.waiting or self.running)

    @property
    def num_running(self) -> int:
        """Sequences that hold a lane, those that are arriving included."""
        return self.lanes.num_used

    def add(self, group: SequenceGroup) -> None:
        """Let a group wait for its turn. The caller has checked that it can run at all."""
        insort(self.waiting, group, key=self._rank)

    def schedule(self, now: float = 0.0) -> SchedulerOutput:
        """The plan of the next step. Every plan wants one `update`, in the same order; at most two may wait for it."""
        # A lane tells a stale result from a live one only if its sequence cannot have left and come back meanwhile.
        assert len(self._in_flight) < 2, "two plans wait for their update already"
        plan = PlanBuilder(self.num_steps, self.config.max_num_batched_tokens)
        self._schedule_running(plan)
        if not plan.preempted:
            self._admit_waiting(plan, now)
        assert plan.rows or self._in_flight or not self.has_unfinished, "a step must compute something"
        self.num_steps += 1
        self._in_flight.append(plan)
        made = plan.finish(self.cache.moves)
        self.cache.moves.clear()
        return made

    def update(self, plan: SchedulerOutput, result: StepResult, now: float = 0.0) -> list[SequenceDelta]:
        """Apply what a step gave: index written pages, append tokens, end what has ended."""
        made = self._in_flight.popleft()
        assert made.step == plan.step, "plans are updated in the order in which they were made"
        assert len(result.token_ids) == len(plan.samples), "a result has one id per sample"
        deltas = self._results.apply(made, result, now)
        self._settle()
        return deltas

    def end(
        self,
        group: SequenceGroup,
        index: int | None,
        reason: FinishReason,
        stop_reason: int | str | None = None,
        now: float = 0.0,
    ) -> list[Sequence]:
        """End one sequence of a group (None, or a beam: all that still live); its pages are back at once.

        Returns who ended.
        """
        whole = index is None or group.beam is not None
        was_swapped = group.status is SequenceStatus.SWAPPED
        ended = [s for s in group.sequences if not s.finished and (whole or s.index == index)]
        for sequence in ended:
            self._results.end(group, sequence, reason, stop_reason, now)
        if group in self.waiting and not group.live:
            self.waiting.remove(group)
            self._num_swapped -= was_swapped
            self._wait_again(group)
        if self.kv_transfer is not None:
            self.kv_transfer.drop_if_ended(group)
        self._settle()
        return ended

    def forget_plans(self) -> None:
        """Drop the plans that no result will come for, after their execution failed."""
        self._in_flight.clear()
        self.cache.moves.clear()

    def check(self) -> None:
        """Assert the invariants that hold between steps (I1 to I5, I7)."""
        check_groups(self.running, self.waiting, self.kv_transfer, self.cache, self.lanes, self._rank)

    def send(self, group: SequenceGroup) -> KVHandoff:
        """Let a group go to another engine. Raises ValueError, and changes nothing, if it cannot leave."""
        if self._in_flight:
            raise ValueError("a step is in flight: requests leave an engine that plans one step at a time")
        assert self.kv_transfer is not None
        handoff = self.kv_transfer.start_send(group)
        self.running.remove(group)
        return handoff

    def can_receive(self, handoff: KVHandoff) -> bool:
        """Whether lanes and pages are there for a handoff now; nobody overtakes those who wait here already."""
        assert self.kv_transfer is not None
        count = len(handoff.sequences)
        if self.waiting or count > len(self.lanes.free):
            return False
        # While others run, each sequence is to have a page for its next tokens, as after a swap.
        reserve = self.watermark_pages + count if self.running or self.kv_transfer.arriving else 0
        return len(handoff.pages) + reserve <= self.cache.num_available

    def run(self, group: SequenceGroup) -> None:
        """Let a group, which has its lanes and pages, run from the next plan on."""
        group.status = SequenceStatus.RUNNING
        insort(self.running, group, key=self._rank)

    def _schedule_running(self, plan: PlanBuilder) -> None:
        i = 0
        while i < len(self.running) and plan.budget:
            group = self.running[i]
            if self._is_plain_decode(group):
                # What most groups do in most steps, and the long way would come to the same.
                plan.next_token(group, group.sequences[0])
                i += 1
                continue
            writes = self._wanted(group, plan)
            while (need := self.pages_to_continue(group, writes)) and need > self.cache.num_available:
                if self._preempt_one_of(i, plan) is group:
                    break  # the next group is now at this index
            else:
                self._place(group, writes, plan)
                i += 1

    def _is_plain_decode(self, group: SequenceGroup) -> bool:
        """Whether a lone sequence wants one token, and holds the page for it alone."""
        if len(group.sequences) > 1:
            return False
        sequence = group.sequences[0]
        start = sequence.num_computed
        one_more = start + 1 == len(sequence.token_ids) + sequence.num_pending and not sequence.needs_resend
        if not one_more or (self.config.append_headroom and not self.cache.num_available):
            return False
        return self.cache.owns(sequence, start)

    def pages_to_continue(self, group: SequenceGroup, writes: list[tuple[Sequence, int]]) -> int:
        """Pages that must be available for a running group to go on."""
        need = self.cache.pages_to_grow(writes)
        if self.config.append_headroom and len(self.running) > 1:
            need = max(need, len(group.live))
        return need

    def _admit_waiting(self, plan: PlanBuilder, now: float) -> None:
        if self.config.batching == "static" and not self.running:
            form_batch(self.waiting, self.config, self.cache)
        while self.waiting and plan.budget:
            i = self.next_waiting()
            group = self.waiting[i]
            if not self.can_admit(group, plan.budget, bool(plan.rows)):
                return
            self._admit(group, plan)
            for earlier in self.waiting[:i]:
                earlier.times_skipped += 1
            del self.waiting[i]
            self.run(group)
            if group.metrics.first_scheduled is None:
                group.metrics.first_scheduled = now
            writes = self._wanted(group, plan)
            # Pages that a swapped group needs to go on may be short; it is then a matter of the next step.
            if self.cache.pages_to_grow(writes) <= self.cache.num_available:
                self._place(group, writes, plan)

    def can_admit(self, group: SequenceGroup, budget: int, busy: bool) -> bool:
        """Whether a waiting group can have its lanes and pages now, in a step with `budget` tokens left.

        `busy`: the step has work without it. Static batches: only the groups that were chosen together come in.
        """
        live = group.live
        if len(live) > len(self.lanes.free) or (self.config.batching == "static" and group.batch is None):
            return False
        reserve = self.watermark_pages if self.running else 0
        if group.status is SequenceStatus.SWAPPED and self.cache.swap is not None:
            # While others run, each sequence is to have a page for its next tokens, or it would go out again at once.
            return self.cache.swap.can_swap_in(live, reserve + len(live) if self.running else 0)
        if not self.config.chunked_prefill and busy and self.cache.tokens_to_compute(group) > budget:
            return False
        return self.cache.fits(group, reserve)

    def next_waiting(self) -> int:
        """The index of the waiting group whose turn it is. Some group waits."""
        if self._num_swapped and not self.config.admit_while_swapped:
            return next(i for i, group in enumerate(self.waiting) if group.status is SequenceStatus.SWAPPED)
        if self._admission is policy.in_order or self.waiting[0].times_skipped >= self.config.max_overtakes:
            return 0
        return policy.choose("admission_policy", self._admission, tuple(self.waiting), self.cache)

    def _admit(self, group: SequenceGroup, plan: PlanBuilder) -> None:
        """Give a waiting group, which may come in, its pages and lanes."""
        live = group.live
        if group.status is SequenceStatus.SWAPPED and self.cache.swap is not None:
            self.cache.swap.swap_in(live)
            self._num_swapped -= 1
        else:
            self.cache.admit(group)
            # Where nothing is shared, each computes the prompt for itself.
            group.forked = group.forked or self.cache.supply is None
            self._count_hits(group, live[0].num_computed)
        for sequence in live:
            self.lanes.assign(sequence)
            sequence.needs_resend = False
            plan.admit(group, sequence)

    def _count_hits(self, group: SequenceGroup, num_tokens: int) -> None:
        # What a resumed group finds of its own is no saving, so it is counted apart.
        if group.metrics.first_scheduled is not None:
            self.resumed_hit_tokens += num_tokens
        else:
            self.prefix_hit_tokens += num_tokens
            group.metrics.num_cached_tokens = num_tokens

    def _wanted(self, group: SequenceGroup, plan: PlanBuilder) -> list[tuple[Sequence, int]]:
        """Each sequence of the group that computes in this step, and the position up to which it does."""
        limit = self.config.long_prefill_token_threshold or plan.budget
        if not group.forked:
            parent = group.live[0]
            if parent.num_computed < parent.prompt_len:
                return [(parent, min(parent.num_computed + min(limit, plan.budget), parent.prompt_len))]
            self._fork(group, plan)
        budget = plan.budget
        writes: list[tuple[Sequence, int]] = []
        for sequence in group.live:
            count = min(sequence.num_tokens - sequence.num_computed, limit, budget)
            if count > 0:
                writes.append((sequence, sequence.num_computed + count))
                budget -= count
        return writes

    def _place(self, group: SequenceGroup, writes: list[tuple[Sequence, int]], plan: PlanBuilder) -> None:
        for sequence, end in writes:
            column = self.cache.grow(sequence, end)
            if sequence.needs_resend:
                sequence.needs_resend = False
                plan.admit(group, sequence)
            else:
                plan.grant(sequence, column)
            row = plan.compute(group, sequence, end)
            if group.forked:
                # Beams that compute their prompts apart begin as one: the first alone looks for continuations.
                first_of_beams = group.beam is None or sequence.num_outputs or sequence is group.live[0]
                if end == sequence.num_tokens and first_of_beams:
                    plan.sample(row, group, sequence)
            elif end == sequence.prompt_len:
                self._fork(group, plan)
                if sequence.num_outputs == 0:
                    for sibling in group.live if group.beam is None else [sequence]:
                        plan.sample(row, group, sibling)

    def _fork(self, group: SequenceGroup, plan: PlanBuilder) -> None:
        parent, *others = group.live
        for sibling in others:
            self.cache.fork(parent, sibling)
            plan.grant(sibling, 0)
        group.forked = True

    def _preempt_one_of(self, first: int, plan: PlanBuilder) -> SequenceGroup:
        """Preempt one of the running groups from `first` on: those before it are already scheduled in this step.

        The first of all is not offered while others run, so that it always advances.
        """
        start = max(first, 1) if len(self.running) > 1 else 0
        chosen = policy.choose("victim_policy", self._victim, tuple(self.running[start:]))
        group = self.running.pop(start + chosen)
        live = group.live
        if live[0].num_outputs == 0:
            # Siblings without an output are one sequence still, and are to fork again.
            for sibling in live[1:]:
                self.cache.release(sibling)
            group.forked = len(live) == 1
        if group.beam is not None:
            group.beam.waiting.clear()
        mode, swap = self.config.preemption_mode, self.cache.swap
        wants_swap = mode == "swap" or (mode == "auto" and len(live) > 1)
        swapped = wants_swap and swap is not None and swap.swap_out(live)
        if swapped:
            self._num_swapped += 1
            self.num_preemptions_swap += 1
            group.metrics.num_preemptions_swap += 1
        else:
            self.num_preemptions += 1
            group.forked = len(live) == 1
        group.status = SequenceStatus.SWAPPED if swapped else SequenceStatus.WAITING
        for sequence in live:
            if not swapped:
                self.cache.release(sequence)
            self.lanes.release(sequence)
            sequence.status = group.status
        group.metrics.num_preemptions += 1
        insort(self.waiting, group, key=self._rank)
        plan.preempted.append(group.request.request_id)
        return group

    def _settle(self) -> None:
        """Drop the running groups that have ended; those with sequences whose turn comes now wait again."""
        ended = [group for group in self.running if not group.live]
        if ended:
            self.running = [group for group in self.running if group.live]
        for group in ended:
            self._wait_again(group)

    def _wait_again(self, group: SequenceGroup) -> None:
        if not group.finished:
            group.start_next_wave()
            insort(self.waiting, group, key=self._rank)
