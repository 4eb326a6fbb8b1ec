"""What each step did to the pages: the raw material of page maps and of studies of sharing.

A record is frozen and stands alone; an engine without a recorder pays nothing for it.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from jpaged.core.plan import MoveKind, PageMove, SchedulerOutput, moves_of
from jpaged.core.requests.sequence import SequenceStatus
from jpaged.core.scheduling.scheduler import Scheduler


class SequencePages(NamedTuple):
    """The block table of one running sequence, and how many tokens of it are known."""

    request_id: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    pages: tuple[int, ...]
    num_tokens: int


class RequestPages(NamedTuple):
    """The pages of one request in one step.

    `logical` counts a page once for each of its sequences, `physical` once; `shared` of these have several holders,
    of this request or of others. `tail_slots` are held but filled by no known token.
    """

    logical: int
    physical: int
    shared: int
    tail_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step: its plan's pages, as they are held while it runs, and what was done to have them.

    `time` is in seconds of the engine's clock. `ref_counts` maps a number of holding sequences to how many pages
    have that many; `tables` are those of all running sequences, `cached` the idle pages of the prefix cache, the next
    victim first. `pages_used` also counts pinned pages. Of `num_tokens` computed tokens, `num_samples` were sampled
    from; `prefix_hit_tokens` were not computed, because cached pages hold them.
    """

    step: int
    time: float
    num_pages: int
    page_size: int
    num_waiting: int
    num_running: int
    num_tokens: int
    num_samples: int
    pages_used: int
    pages_free: int
    host_pages_used: int
    ref_counts: dict[int, int]
    tail_slots: int
    prefix_hit_tokens: int
    tables: tuple[SequencePages, ...]
    cached: tuple[int, ...]
    evicted: tuple[int, ...]
    moves: tuple[PageMove, ...]
    preempted_recompute: tuple[str, ...]
    preempted_swap: tuple[str, ...]

    @property
    def pages_cached(self) -> int:
        """Idle pages of the prefix cache."""
        return len(self.cached)

    @property
    def pages_logical(self) -> int:
        """Pages that would be held if nothing were shared: the lengths of all block tables."""
        return sum(holders * count for holders, count in self.ref_counts.items())

    @property
    def pages_saved(self) -> int:
        """Logical less physical pages: what sharing saves in this step."""
        return self.pages_logical - sum(self.ref_counts.values())

    @property
    def tail_waste(self) -> float:
        """The share of the held slots that no known token fills."""
        return self.tail_slots / (self.pages_used * self.page_size) if self.pages_used else 0.0

    def moved(self, kind: MoveKind) -> tuple[PageMove, ...]:
        """The moves of one kind that came before the step's writes."""
        return moves_of(self.moves, kind)

    def by_request(self) -> dict[str, RequestPages]:
        """The pages of each running request."""
        holders = Counter(page for table in self.tables for page in table.pages)
        tables: dict[str, list[SequencePages]] = {}
        for table in self.tables:
            tables.setdefault(table.request_id, []).append(table)
        made: dict[str, RequestPages] = {}
        for request_id, own in tables.items():
            pages = {page for table in own for page in table.pages}
            made[request_id] = RequestPages(
                logical=sum(len(table.pages) for table in own),
                physical=len(pages),
                shared=sum(holders[page] > 1 for page in pages),
                tail_slots=_tail_slots(own, self.page_size),
            )
        return made


class StepRecorder:
    """Keeps a StepRecord of every plan. It listens to evictions, so it is made before the first step."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.records: list[StepRecord] = []
        self._scheduler = scheduler
        self._evicted: list[int] = []
        self._hit_tokens = scheduler.prefix_hit_tokens
        if scheduler.cache.supply is not None:
            scheduler.cache.supply.on_evict = self._evicted.append

    def record(self, plan: SchedulerOutput, now: float) -> None:
        """Take in a plan that was just made, while its pages are held and none has been given back."""
        scheduler, cache = self._scheduler, self._scheduler.cache
        tables = tuple(
            SequencePages(group.request.request_id, s.index, tuple(s.pages), len(s.token_ids))
            for group in scheduler.running
            for s in group.live
        )
        holders = Counter(page for table in tables for page in table.pages)
        swapped = {g.request.request_id for g in scheduler.waiting if g.status is SequenceStatus.SWAPPED}
        self.records.append(
            StepRecord(
                step=plan.step,
                time=now,
                num_pages=cache.pool.num_pages,
                page_size=cache.page_size,
                num_waiting=len(scheduler.waiting),
                num_running=scheduler.num_running,
                num_tokens=plan.num_tokens,
                num_samples=len(plan.samples),
                pages_used=cache.num_used,
                pages_free=cache.pool.num_free,
                host_pages_used=cache.swap.num_pages - cache.swap.num_free if cache.swap else 0,
                ref_counts=dict(sorted(Counter(holders.values()).items())),
                tail_slots=_tail_slots(tables, cache.page_size),
                prefix_hit_tokens=scheduler.prefix_hit_tokens - self._hit_tokens,
                tables=tables,
                cached=cache.prefix_cache.idle_pages if cache.prefix_cache else (),
                evicted=tuple(self._evicted),
                moves=plan.moves,
                preempted_recompute=tuple(r for r in plan.preempted if r not in swapped),
                preempted_swap=tuple(r for r in plan.preempted if r in swapped),
            )
        )
        self._evicted.clear()
        self._hit_tokens = scheduler.prefix_hit_tokens


def _tail_slots(tables: tuple[SequencePages, ...] | list[SequencePages], page_size: int) -> int:
    """Slots that no known token fills; a page that several sequences hold counts once, as the fullest fills it."""
    filled: dict[int, int] = {}
    for table in tables:
        for i in range(min(table.num_tokens // page_size, len(table.pages)), len(table.pages)):
            page = table.pages[i]
            filled[page] = max(filled.get(page, 0), table.num_tokens - i * page_size, 0)
    return sum(page_size - count for count in filled.values())
