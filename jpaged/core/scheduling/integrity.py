"""What holds between the steps of a scheduler, as assertions.

Lives here: check_groups: rows, orders, and who may hold what.
Promises: it changes nothing; what it finds wrong is a fault of ours, not of a user.
Must not know: plans, budgets, policies.
"""

from collections.abc import Callable, Sequence

from jpaged.core.cache.block_table import pages_for
from jpaged.core.cache.caches import Cache
from jpaged.core.cache.reserved_cache import ReservedCache
from jpaged.core.requests.sequence import Sequence as TokenSequence
from jpaged.core.requests.sequence import SequenceGroup, SequenceStatus

HOLDING = (SequenceStatus.RUNNING, SequenceStatus.ARRIVING)


def check_groups(
    running: list[SequenceGroup],
    waiting: list[SequenceGroup],
    arriving: list[SequenceGroup],
    cache: Cache,
    free_slots: Sequence[int],
    num_slots: int,
    rank: Callable[[SequenceGroup], tuple[int, int]],
) -> None:
    """Assert I1 to I5 and I7."""
    live = [s for group in (*running, *arriving) for s in group.live]
    cache.check([*live, *(s for group in waiting for s in group.live)])
    slots = [s.lane for s in live]
    assert None not in slots, "a running sequence has no lane"
    held_slots = (s for s in slots if s is not None)
    assert sorted([*free_slots, *held_slots]) == list(range(num_slots)), "a lane is lost or given twice"
    assert all(group.status is SequenceStatus.ARRIVING for group in arriving)
    for group in (*running, *waiting, *arriving):
        holders = group.live if group.status in HOLDING else []
        _check_group(group, holders if group.forked else holders[:1], cache)
    for groups in (running, waiting):
        assert groups == sorted(groups, key=rank), "a group stands behind a later one"
    if not running and not arriving:
        held = cache.pool.num_pages - cache.num_available
        assert held == len(cache.aside), "pages are held while nothing runs"


def _check_group(group: SequenceGroup, holders: list[TokenSequence], cache: Cache) -> None:
    for sequence in group.sequences:
        if sequence not in holders:
            assert not sequence.table.pages, "pages are held by one who does not run"
            swapped = sequence.status is SequenceStatus.SWAPPED
            assert swapped or (sequence.num_computed == 0 and not sequence.host_pages)
            continue
        assert not sequence.host_pages, "host pages are held by one who runs"
        assert sequence.num_computed <= min(len(sequence.token_ids), sequence.table.capacity)
        most = len(sequence.token_ids)
        if isinstance(cache, ReservedCache):
            most = cache.reserved_tokens(group)
        assert len(sequence.table) <= pages_for(most, cache.page_size), "a page is held for no token"
        assert sequence.lane is None or (group.status in HOLDING and not sequence.finished)
