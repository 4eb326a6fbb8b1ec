"""Several decode steps at once, where nothing can happen in them but that pages are taken.

Lives here: Stride.
Promises: the same decisions, times and statistics as step by step; it only saves the work of finding them out.
Must not know: workloads, cost models.
"""

from itertools import pairwise
from typing import NamedTuple

from jpaged.core.engine import Engine
from jpaged.core.observe.memory_use import MemoryUse, memory_use
from jpaged.core.requests.sequence import Sequence, SequenceGroup
from jpaged.core.scheduling.plan import PageGrant
from jpaged.sim.executor import SimExecutor
from jpaged.sim.run_log import RunLog
from jpaged.sim.scripted import TOKEN_ID
from jpaged.sim.work import StepWork

Row = tuple[SequenceGroup, Sequence]


class _Grant(NamedTuple):
    """The row `row` of the stride needs a page in its step `step`."""

    step: int
    row: int


class Stride:
    """Runs decode steps of an engine over a SimExecutor by the dozen; a Leap of an OpenLoop.

    It declines (0 steps) whenever something else than "each running sequence gets its next token" might happen: a
    group with several live sequences or a prompt to compute, a prefix cache, a waiting group that could come in, a
    sequence about to end, a page short.
    """

    def __init__(self, engine: Engine, executor: SimExecutor, log: RunLog | None = None) -> None:
        self._engine = engine
        self._scheduler = engine.scheduler
        self._cache = engine.scheduler.cache
        self._executor = executor
        self._log = log

    def __call__(self, next_arrival_ns: int | None, until_ns: int | None) -> int:
        """Run as many steps at once as nothing happens in, perhaps none; how many.

        Each starts before `until_ns`, and before the next arrival unless that could only wait.
        """
        rows, size = self._rows(), self._cache.page_size
        if rows is None or (self._scheduler.waiting and not self._head_is_blocked(len(rows))):
            return 0
        most, grants = self._grants(rows, min(_tokens_left(*row) for row in rows) - 1)
        if most < 2:
            return 0
        bound = until_ns
        if next_arrival_ns is not None and not self._scheduler.waiting:
            bound = next_arrival_ns if bound is None else min(bound, next_arrival_ns)
        works, times_ns = self._run(rows, most, bound)
        before = memory_use(self._scheduler, sum(len(s.pages) for _, s in rows) * size - _known(rows))
        granted = self._take_pages(rows, [grant for grant in grants if grant.step < len(works)])
        self._note_steps(rows, works, times_ns, granted, before)
        self._append_tokens(rows, [time_ns / 1e9 for time_ns in times_ns[1:]])
        self._scheduler.num_steps += len(works)
        return len(works)

    def _rows(self) -> list[Row] | None:
        """The running sequences, or None if not every one simply wants its next token."""
        if self._cache.prefix_cache is not None or not self._scheduler.running:
            return None
        rows: list[Row] = []
        for group in self._scheduler.running:
            sequence = group.sequences[0]
            if len(group.sequences) > 1 or group.beam is not None or sequence.needs_resend:
                return None
            if sequence.num_computed + 1 != len(sequence.token_ids) or not sequence.num_outputs:
                return None
            if group.request.params.logprobs is not None or TOKEN_ID in group.stop_ids:
                return None
            rows.append((group, sequence))
        return rows

    def _head_is_blocked(self, num_rows: int) -> bool:
        """Whether the waiting group whose turn it is cannot come in, and will not before a running one ends."""
        config = self._scheduler.config
        if config.admission_policy != "in_order":
            return False
        if config.batching == "static":
            return True
        head = self._scheduler.waiting[self._scheduler.next_waiting()]
        return not self._scheduler.can_admit(head, config.max_num_batched_tokens - num_rows, busy=True)

    def _grants(self, rows: list[Row], most: int) -> tuple[int, list[_Grant]]:
        """How many steps, up to `most`, there are pages for, and which row needs one in which of them."""
        size = self._cache.page_size
        room = self._cache.num_available - (1 if self._scheduler.config.append_headroom else 0)
        if room < 0:
            return 0, []
        grants = [
            _Grant(step, row)
            for row, (_, s) in enumerate(rows)
            for step in range(len(s.pages) * size - s.num_computed, most, size)
        ]
        grants.sort()
        if len(grants) > room:
            most = grants[room].step
            grants = [grant for grant in grants if grant.step < most]
        return most, grants

    def _run(self, rows: list[Row], most: int, bound: int | None) -> tuple[list[StepWork], list[int]]:
        """Let the time of up to `most` steps pass, each started before `bound`: their work; start and ends."""
        work = self._executor.decode_work([s.num_computed + 1 for _, s in rows])
        works: list[StepWork] = []
        clock = self._executor.clock
        times_ns = [clock.now_ns]
        while len(works) < most and (bound is None or times_ns[-1] < bound):
            self._executor.charge(self._scheduler.num_steps + len(works), work)
            works.append(work)
            times_ns.append(clock.now_ns)
            work = work.after_decode_step()
        return works, times_ns

    def _take_pages(self, rows: list[Row], grants: list[_Grant]) -> dict[int, list[PageGrant]]:
        """Take the pages, in the order in which the steps would; what each step grants."""
        granted: dict[int, list[PageGrant]] = {}
        if not grants:
            return granted
        assert self._cache.supply is not None, "what is reserved is there"
        for step, row in grants:
            sequence = rows[row][1]
            page = self._cache.supply.pool.allocate()
            sequence.pages.append(page)
            assert sequence.lane is not None
            granted.setdefault(step, []).append(PageGrant(sequence.lane, len(sequence.pages) - 1, (page,)))
        return granted

    def _note_steps(
        self,
        rows: list[Row],
        works: list[StepWork],
        times_ns: list[int],
        granted: dict[int, list[PageGrant]],
        before: MemoryUse,
    ) -> None:
        """Give the statistics and the log what each step would have given them; `before`: as if no page was taken."""
        size, stats, log = self._cache.page_size, self._engine.stats, self._log
        slots = tuple(s.lane for _, s in rows if s.lane is not None)
        first_step = self._scheduler.num_steps
        taken = sum(map(len, granted.values()))
        used = self._cache.num_used - taken
        logical = sum(len(s.pages) for _, s in rows) - taken
        reserved = self._cache.supply is None
        growing = sum(1 for _, s in rows if s.deferred_finish is None)
        tail = logical * size - _known(rows)
        # The log has what the plan says, the executor may have charged for padded rows.
        work = StepWork(size, len(rows), _known(rows), samples=len(rows))
        for i in range(len(works)):
            new = len(granted.get(i, ()))
            used, logical, tail = used + new, logical + new, tail + new * size
            stats.after_decode_step(used, used * size, logical, tail, len(rows))
            if log is not None:
                memory = _grown(before, i * growing) if reserved else _paged(before.total, used * size, tail)
                times = times_ns[i], times_ns[i + 1]
                log.add_decode_step(first_step + i, times, work, slots, granted.get(i, []), (used, logical), memory)
            tail -= len(rows)
            work = work.after_decode_step()

    def _append_tokens(self, rows: list[Row], times: list[float]) -> None:
        gaps = [later - earlier for earlier, later in pairwise(times)]
        new_ids = [TOKEN_ID] * len(times)
        for group, sequence in rows:
            sequence.token_ids.extend(new_ids)
            sequence.num_computed += len(times)
            if sequence.deferred_finish is None:
                assert sequence.last_token is not None
                group.metrics.itl.append(times[0] - sequence.last_token)
                group.metrics.itl.extend(gaps)
                sequence.last_token = times[-1]


def _tokens_left(group: SequenceGroup, sequence: Sequence) -> int:
    """Tokens until something happens to the sequence: it ends, or the static batch that it waits for does."""
    end = group.max_len
    if sequence.deferred_finish is not None and group.batch is not None:
        end = sequence.prompt_len + group.batch.num_outputs
    return end - len(sequence.token_ids)


def _known(rows: list[Row]) -> int:
    """Tokens of all rows, the ones to be computed next included."""
    return sum(len(s.token_ids) for _, s in rows)


def _paged(total: int, held: int, tail: int) -> MemoryUse:
    return MemoryUse(held - tail, 0, tail, 0, total - held)


def _grown(memory: MemoryUse, tokens: int) -> MemoryUse:
    """The same reservations, with so many tokens more in them."""
    return memory._replace(tokens=memory.tokens + tokens, reserved=memory.reserved - tokens)
