"""Planning a step while those before it still run.

Lives here: what must hold for that, and the stand-ins for ids that are not known yet.
Promises: the plan is the one that would be made afterwards, unless a stop token ends a sequence meanwhile; then its
row is computed for nothing. No token depends on it.
Must not know: executors, clocks.
"""

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from jpaged.core.cache_manager import CacheManager
from jpaged.core.output import SchedulerOutput
from jpaged.core.scheduler import Scheduler
from jpaged.core.sequence import Sequence, SequenceGroup

UNKNOWN = -1
"""Stands for an id that a running step is about to draw; no executor is told it, and no page of it is hashed."""


def ids_to_come(scheduler: Scheduler, plans: Iterable[SchedulerOutput]) -> list[Sequence]:
    """The sequences whose next ids the plans in flight will draw, each once an id; none where results must come first.

    They must come first where they may change what is planned next: a sequence reaches its full length, someone waits
    for a row, pages could run short so that one is preempted, beams or static batches run. So nobody comes in and
    nobody is preempted in a plan that is made meanwhile, and a row slot in flight is its sequence's or nobody's.
    """
    drawn: Counter[int | None] = Counter(sample.row_slot for plan in plans for sample in plan.samples)
    if not drawn or (scheduler.waiting and scheduler.num_running < scheduler.config.max_num_seqs):
        return []
    cache = scheduler.cache
    # Each sequence takes a page at most, and copies one at most.
    if not isinstance(cache, CacheManager) or cache.num_available < 2 * scheduler.num_running:
        return []
    to_come: list[Sequence] = []
    for group in scheduler.running:
        if group.beam is not None or group.batch is not None:
            return []
        for sequence in group.live:
            if count := drawn[sequence.row_slot]:
                if _ends_by_length(group, sequence, count):
                    return []
                to_come += [sequence] * count
    return to_come


@contextmanager
def expecting(sequences: list[Sequence]) -> Generator[None]:
    """Within it a sequence has one token more, UNKNOWN, each time it is named, so that the next one can be planned."""
    for sequence in sequences:
        sequence.token_ids.append(UNKNOWN)
    try:
        yield
    finally:
        for sequence in sequences:
            assert sequence.token_ids[-1] == UNKNOWN, "a token came while another was expected"
            sequence.token_ids.pop()


def _ends_by_length(group: SequenceGroup, sequence: Sequence, count: int) -> bool:
    return len(sequence.token_ids) + count >= group.max_len
