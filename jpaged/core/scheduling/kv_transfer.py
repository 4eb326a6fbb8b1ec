"""Requests that leave for another engine with their pages, and those that come from one.

Lives here: KVTransfer: send, sent, can_receive, receive, received, and whether a step must wait for pages on their way.
Promises: what cannot leave or come in changes nothing; pages on their way are held until their copies are made.
Must not know: how pages are copied, what a step computes.
"""

from typing import TYPE_CHECKING

from jpaged.core.cache.cache_manager import CacheManager
from jpaged.core.requests.handoff import KVHandoff, PageMove, handoff_of, restore_group
from jpaged.core.requests.sequence import SequenceGroup, SequenceStatus

if TYPE_CHECKING:
    from jpaged.core.scheduling.scheduler import Scheduler


class KVTransfer:
    """The door of a scheduler: groups in `arriving` hold rows and pages, and run once their pages are copied."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self.arriving: list[SequenceGroup] = []
        self._scheduler = scheduler

    def send(self, group: SequenceGroup) -> KVHandoff:
        """Let a group go to another engine. Its pages are held until `cache.sent(request_id)`, its rows are free now.

        Raises ValueError, and changes nothing, if it cannot leave.
        """
        if self._scheduler.plans_in_flight:
            raise ValueError("a step is in flight: requests leave an engine that plans one step at a time")
        cache = self._paged("handed over")
        handoff = handoff_of(group, cache.page_size)
        live = group.live
        cache.send(group.request.request_id, live)
        for sequence in live:
            self._scheduler.release_lane(sequence)
        self._scheduler.running.remove(group)
        return handoff

    def sent(self, request_id: str) -> None:
        """Let go of the pages of a group that was sent."""
        self._paged("handed over").sent(request_id)

    def forget_outgoing(self) -> None:
        """Let go of the pages of all groups that were sent: their contents are lost."""
        if isinstance(self._scheduler.cache, CacheManager):
            for name in list(self._scheduler.cache.outgoing):
                self._scheduler.cache.sent(name)

    def can_receive(self, handoff: KVHandoff) -> bool:
        """Whether rows and pages are there for a handoff now; nobody overtakes those who wait here already."""
        count = len(handoff.sequences)
        if self._scheduler.waiting or count > self._scheduler.num_free_lanes:
            return False
        # While others run, each sequence is to have a page for its next tokens, as after a swap.
        reserve = self._scheduler.watermark_pages + count if self._scheduler.running or self.arriving else 0
        return self._paged("received").can_receive(handoff, reserve)

    def receive(self, group: SequenceGroup, handoff: KVHandoff) -> tuple[PageMove, ...]:
        """Give a new group the rows and pages of a handoff that can be received; it runs from `received` on.

        Returns what must be copied before that.
        """
        cache = self._paged("received")
        live = restore_group(group, handoff)
        moves = cache.receive(handoff, live)
        for sequence in live:
            self._scheduler.assign_lane(sequence)
            # The executor knows nothing of it yet: the first plan that has it tells all.
            sequence.needs_resend = True
        group.status = SequenceStatus.ARRIVING
        self.arriving.append(group)
        return moves

    def received(self, group: SequenceGroup) -> None:
        """The pages of an arriving group have been copied: let it run."""
        self.arriving.remove(group)
        self._scheduler.run(group)

    def drop_if_ended(self, group: SequenceGroup) -> None:
        """Forget an arriving group none of whose sequences lives any more."""
        if group in self.arriving and not group.live:
            self.arriving.remove(group)

    @property
    def must_wait(self) -> bool:
        """Whether a step could compute nothing before some pages on their way, out or in, have got there."""
        cache = self._scheduler.cache
        if not isinstance(cache, CacheManager) or not (self.arriving or cache.outgoing):
            return False
        if not self._scheduler.running:
            return bool(self._scheduler.waiting) and not self._can_admit_first()
        first = self._scheduler.running[0]
        behind = [(s, len(s.token_ids)) for s in first.live if s.num_computed < len(s.token_ids)]
        held = cache.aside.union(*(s.table.pages for group in (first, *self.arriving) for s in group.live))
        # A prompt got all its pages when it came in.
        return self._scheduler.pages_to_continue(first, behind if first.forked else []) > cache.pool.num_pages - len(
            held
        )

    def _can_admit_first(self) -> bool:
        group = self._scheduler.waiting[self._scheduler.next_waiting()]
        if group.status is SequenceStatus.SWAPPED:
            return self._scheduler.cache.can_swap_in(group.live, len(group.live))
        return self._scheduler.can_admit(group, self._scheduler.config.max_num_batched_tokens, busy=False)

    @property
    def is_paged(self) -> bool:
        """Whether requests can leave and arrive with their pages."""
        return isinstance(self._scheduler.cache, CacheManager) and self._scheduler.config.batching != "static"

    def _paged(self, what: str) -> CacheManager:
        """The cache, where pages can be told one by one. Raises ValueError."""
        if not isinstance(self._scheduler.cache, CacheManager) or not self.is_paged:
            raise ValueError(f"no request can be {what} here: it takes reservation='none' and continuous batching")
        return self._scheduler.cache
