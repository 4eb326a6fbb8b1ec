"""Planning a step while the one before it still runs.

Lives here: what must hold for that, and the stand-ins for ids that are not known yet.
Promises: the plan is the one that would be made afterwards, unless a stop token ends a sequence meanwhile; then its
row is computed for nothing. No token depends on it.
Must not know: executors, clocks.
"""

from collections.abc import Generator
from contextlib import contextmanager

from jpaged.core.cache.cache_manager import CacheManager
from jpaged.core.requests.sequence import Sequence, SequenceGroup
from jpaged.core.scheduling.plan import SchedulerOutput
from jpaged.core.scheduling.scheduler import Scheduler

UNKNOWN = -1
"""Stands for an id that a running step is about to draw; no executor is told it, and no page of it is hashed."""


def sequences_to_continue(scheduler: Scheduler, plan: SchedulerOutput) -> list[Sequence]:
    """The sequences whose next ids `plan`, the only one in flight, will draw; none where its result must come first.

    It must come first where it may change what is planned next: a sequence reaches its full length, someone waits
    for a row, pages could run short so that one is preempted, beams or static batches run.
    """
    if not plan.samples or (scheduler.waiting and scheduler.num_running < scheduler.config.max_num_seqs):
        return []
    cache = scheduler.cache
    # Each sequence takes a page at most, and copies one at most.
    if not isinstance(cache, CacheManager) or cache.num_available < 2 * scheduler.num_running:
        return []
    drawn = {sample.lane for sample in plan.samples}
    continuing: list[Sequence] = []
    for group in scheduler.running:
        if group.beam is not None or group.batch is not None:
            return []
        for sequence in group.live:
            if sequence.lane in drawn:
                if _ends_by_length(group, sequence):
                    return []
                continuing.append(sequence)
    return continuing


@contextmanager
def expecting(sequences: list[Sequence]) -> Generator[None]:
    """Within it each sequence has one token more, UNKNOWN, so that the next one can be planned."""
    for sequence in sequences:
        sequence.token_ids.append(UNKNOWN)
    try:
        yield
    finally:
        for sequence in sequences:
            assert sequence.token_ids[-1] == UNKNOWN, "a token came while another was expected"
            sequence.token_ids.pop()


def _ends_by_length(group: SequenceGroup, sequence: Sequence) -> bool:
    return len(sequence.token_ids) + 1 >= group.max_len
