"""Requests that leave for another engine with their pages, and those that come from one.

Pages on their way are held, on both sides, until their copies are made.
"""

from jpaged.core.cache.page_supply import PageSupply
from jpaged.core.plan import MoveKind, PageMove
from jpaged.core.requests.handoff import KVHandoff, handoff_of, restore_group
from jpaged.core.requests.sequence import SequenceGroup, SequenceStatus
from jpaged.core.scheduling.lanes import Lanes


class KVTransfer:
    """Groups in `arriving` have lanes and pages, and run once their pages are copied; `outgoing` tables are held."""

    def __init__(self, supply: PageSupply, lanes: Lanes, page_size: int) -> None:
        self.arriving: list[SequenceGroup] = []
        self.outgoing: dict[str, list[list[int]]] = {}
        self._supply = supply
        self._lanes = lanes
        self._page_size = page_size

    @property
    def outgoing_tables(self) -> list[list[int]]:
        """The block tables of all requests that were sent."""
        return [pages for tables in self.outgoing.values() for pages in tables]

    def start_send(self, group: SequenceGroup) -> KVHandoff:
        """Take the pages of a group, and hold them until `finish_send`; its lanes are free now.

        Raises ValueError, and changes nothing, if it cannot leave.
        """
        handoff = handoff_of(group, self._page_size)
        name, live = group.request.request_id, group.live
        assert name not in self.outgoing
        self.outgoing[name] = [self._supply.detach(sequence) for sequence in live]
        for sequence in live:
            self._lanes.release(sequence)
        return handoff

    def finish_send(self, request_id: str) -> None:
        """Let go of the pages of a group that was sent; indexed ones stay cached."""
        for pages in self.outgoing.pop(request_id):
            self._supply.let_go(pages)

    def start_receive(self, group: SequenceGroup, handoff: KVHandoff) -> tuple[PageMove, ...]:
        """Give a new group the lanes and pages of a handoff, which find room; it runs from `finish_receive` on.

        Returns what must be copied before that.
        """
        live = restore_group(group, handoff)
        pages = self._supply.allocate_as([sequence.pages for sequence in handoff.sequences], live)
        for sequence in live:
            self._lanes.assign(sequence)
            # The executor knows nothing of it yet: the first plan that has it tells all.
            sequence.needs_resend = True
        group.status = SequenceStatus.ARRIVING
        self.arriving.append(group)
        return tuple(PageMove(MoveKind.RECEIVE, source, page) for source, page in pages.items())

    def finish_receive(self, group: SequenceGroup) -> None:
        """The pages of an arriving group, which is to run now, have been copied."""
        self.arriving.remove(group)

    def drop_if_ended(self, group: SequenceGroup) -> None:
        """Forget an arriving group none of whose sequences lives any more."""
        if group in self.arriving and not group.live:
            self.arriving.remove(group)
