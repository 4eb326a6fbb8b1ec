"""What holds between the steps of a scheduler, as assertions: a fault found here is ours, not a user's."""

from collections.abc import Callable

from jpaged.core.cache.memory_policy import MemoryPolicy
from jpaged.core.cache.page_pool import pages_for
from jpaged.core.requests.sequence import Sequence, SequenceGroup, SequenceStatus
from jpaged.core.scheduling.kv_transfer import KVTransfer
from jpaged.core.scheduling.lanes import Lanes

HOLDING = (SequenceStatus.RUNNING, SequenceStatus.ARRIVING)


def check_groups(
    running: list[SequenceGroup],
    waiting: list[SequenceGroup],
    transfer: KVTransfer | None,
    cache: MemoryPolicy,
    lanes: Lanes,
    rank: Callable[[SequenceGroup], tuple[int, int]],
) -> None:
    """Assert I1 to I5 and I7."""
    arriving, outgoing = (transfer.arriving, transfer.outgoing_tables) if transfer else ([], [])
    live = [s for group in (*running, *arriving) for s in group.live]
    cache.check([*live, *(s for group in waiting for s in group.live)], outgoing)
    held_lanes = [s.lane for s in live if s.lane is not None]
    assert len(held_lanes) == len(live), "a running sequence has no lane"
    assert sorted([*lanes.free, *held_lanes]) == list(range(lanes.count)), "a lane is lost or given twice"
    assert all(group.status is SequenceStatus.ARRIVING for group in arriving)
    for group in (*running, *waiting, *arriving):
        holders = group.live if group.status in HOLDING else []
        _check_group(group, holders if group.forked else holders[:1], cache)
    for groups in (running, waiting):
        assert groups == sorted(groups, key=rank), "a group stands behind a later one"
    if not running and not arriving:
        pinned = cache.prefixes.pinned_pages if cache.prefixes else set[int]()
        assert cache.num_used == len(pinned.union(*outgoing)), "pages are held while nothing runs"


def _check_group(group: SequenceGroup, holders: list[Sequence], cache: MemoryPolicy) -> None:
    for sequence in group.sequences:
        if sequence not in holders:
            assert not sequence.pages, "pages are held by one who does not run"
            swapped = sequence.status is SequenceStatus.SWAPPED
            assert swapped or (sequence.num_computed == 0 and not sequence.host_pages)
            continue
        assert not sequence.host_pages, "host pages are held by one who runs"
        assert sequence.num_indexed * cache.page_size <= sequence.num_computed <= sequence.num_tokens
        assert sequence.num_computed <= len(sequence.pages) * cache.page_size
        most = cache.reserved_tokens(group) or sequence.num_tokens
        assert len(sequence.pages) <= pages_for(most, cache.page_size), "a page is held for no token"
        assert sequence.lane is None or (group.status in HOLDING and not sequence.finished)
