"""Many decode steps at once, where nothing can happen in them but that pages are allocated.

They decide the same as step by step; only the work of finding that out is saved. For executors that need no plan.
"""

from itertools import pairwise
from typing import NamedTuple

from jpaged.core.plan import PageGrant
from jpaged.core.requests.sequence import Sequence, SequenceGroup
from jpaged.core.scheduling.scheduler import Scheduler


class DecodeStep(NamedTuple):
    """What one of the steps did; `num_used` to `tail_slots` are as EngineStats counts them."""

    step: int
    grants: list[PageGrant]
    num_used: int
    logical_pages: int
    tail_slots: int


class _Allocation(NamedTuple):
    """The row `row` needs a page in the `step`-th of the steps."""

    step: int
    row: int


class DecodeAhead:
    """Up to `max_steps` steps in each of which every running sequence computes one token and gets its next.

    `contexts` are the tokens that each row's attention reads in the first of them; in each later one, one more.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rows: list[tuple[SequenceGroup, Sequence]],
        max_steps: int,
        allocations: list[_Allocation],
    ) -> None:
        self.max_steps = max_steps
        self.contexts = [sequence.num_computed + 1 for _, sequence in rows]
        self.lanes = tuple(sequence.lane for _, sequence in rows if sequence.lane is not None)
        # The others are padding of a static batch.
        self.num_growing = sum(1 for _, sequence in rows if sequence.deferred_finish is None)
        self._scheduler = scheduler
        self._rows = rows
        self._allocations = allocations

    def apply(self, times: list[float], token_id: int) -> list[DecodeStep]:
        """Take the first steps, of which each starts and ends at two neighbours of `times`; every id is `token_id`."""
        count, cache = len(times) - 1, self._scheduler.cache
        num_used, logical = cache.num_used, sum(len(sequence.pages) for _, sequence in self._rows)
        tail = logical * cache.page_size - sum(self.contexts)
        grants = self._allocate(count)
        steps: list[DecodeStep] = []
        for i in range(count):
            new = len(grants[i])
            num_used, logical, tail = num_used + new, logical + new, tail + new * cache.page_size
            steps.append(DecodeStep(self._scheduler.num_steps + i, grants[i], num_used, logical, tail))
            tail -= len(self._rows)
        self._append_tokens(times, token_id)
        self._scheduler.num_steps += count
        return steps

    def _allocate(self, count: int) -> list[list[PageGrant]]:
        """Allocate the pages of the first steps, in the order in which they would; what each of them grants."""
        grants: list[list[PageGrant]] = [[] for _ in range(count)]
        for step, row in self._allocations:
            if step < count:
                sequence = self._rows[row][1]
                column = self._scheduler.cache.grow(sequence, len(sequence.pages) * self._scheduler.cache.page_size + 1)
                grants[step].append(PageGrant(self.lanes[row], column, (sequence.pages[column],)))
        return grants

    def _append_tokens(self, times: list[float], token_id: int) -> None:
        ends = times[1:]
        gaps = [later - earlier for earlier, later in pairwise(ends)]
        new_ids = [token_id] * len(ends)
        for group, sequence in self._rows:
            sequence.compute_and_append(new_ids)
            if sequence.deferred_finish is None:
                assert sequence.last_token is not None
                group.metrics.itl.append(ends[0] - sequence.last_token)
                group.metrics.itl.extend(gaps)
                sequence.last_token = ends[-1]


def decode_ahead(scheduler: Scheduler, token_id: int) -> DecodeAhead | None:
    """The next steps, if each sequence's next ids are all `token_id` and nothing else can happen in two or more.

    None with a group of several live sequences or a prompt to compute, a prefix cache, a waiting group that could be
    admitted, logprobs asked for, a sequence about to end, or a page short.
    """
    rows = _rows(scheduler, token_id)
    if rows is None or (scheduler.waiting and not _head_is_blocked(scheduler, len(rows))):
        return None
    max_steps, allocations = _allocations(scheduler, rows, min(_tokens_left(*row) for row in rows) - 1)
    return DecodeAhead(scheduler, rows, max_steps, allocations) if max_steps > 1 else None


def _rows(scheduler: Scheduler, token_id: int) -> list[tuple[SequenceGroup, Sequence]] | None:
    """The running sequences, or None if not every one simply wants its next token."""
    if scheduler.cache.prefix_cache is not None or not scheduler.running:
        return None
    rows: list[tuple[SequenceGroup, Sequence]] = []
    for group in scheduler.running:
        sequence = group.sequences[0]
        if len(group.sequences) > 1 or group.beam is not None or sequence.needs_resend:
            return None
        if sequence.num_computed + 1 != len(sequence.token_ids) or not sequence.num_outputs:
            return None
        if group.request.params.logprobs is not None or token_id in group.stop_ids:
            return None
        rows.append((group, sequence))
    return rows


def _head_is_blocked(scheduler: Scheduler, num_rows: int) -> bool:
    """Whether the waiting group whose turn it is cannot be admitted, and will not be before a running one ends."""
    config = scheduler.config
    if config.admission_policy != "in_order":
        return False
    if config.batching == "static":
        return True
    head = scheduler.waiting[scheduler.next_waiting()]
    return not scheduler.can_admit(head, config.max_num_batched_tokens - num_rows, busy=True)


def _allocations(
    scheduler: Scheduler, rows: list[tuple[SequenceGroup, Sequence]], most: int
) -> tuple[int, list[_Allocation]]:
    """How many steps, up to `most`, there are pages for, and which row needs one in which of them."""
    size = scheduler.cache.page_size
    room = scheduler.cache.num_available - (1 if scheduler.config.append_headroom else 0)
    if room < 0:
        return 0, []
    allocations = sorted(
        _Allocation(step, row)
        for row, (_, s) in enumerate(rows)
        for step in range(len(s.pages) * size - s.num_computed, most, size)
    )
    return (allocations[room].step if len(allocations) > room else most), allocations


def _tokens_left(group: SequenceGroup, sequence: Sequence) -> int:
    """Tokens until something happens to the sequence: it ends, or the static batch that it waits for does."""
    end = group.max_len
    if sequence.deferred_finish is not None and group.batch is not None:
        end = sequence.prompt_len + group.batch.num_outputs
    return end - len(sequence.token_ids)
