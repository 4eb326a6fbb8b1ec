"""When the next step may be planned: while the one before still runs, or only once pages on their way have come.

A plan made ahead is the one that would be made afterwards, unless a stop token ends a sequence meanwhile; then its row
is computed for nothing, and no token depends on it.
"""

from jpaged.core.plan import SchedulerOutput
from jpaged.core.requests.sequence import Sequence, SequenceStatus
from jpaged.core.scheduling.scheduler import Scheduler


def sequences_to_continue(scheduler: Scheduler, plan: SchedulerOutput) -> list[Sequence]:
    """The sequences whose next ids `plan`, the only one in flight, samples; none where its result must come first.

    It must come first where it may change what is planned next: a sequence reaches its full length, someone waits
    for a lane, pages could run short so that one is preempted, beams or static batches run.
    """
    if not plan.samples or (scheduler.waiting and scheduler.num_running < scheduler.config.max_num_seqs):
        return []
    # Each sequence allocates a page at most, and copies one at most.
    if scheduler.cache.supply is None or scheduler.cache.num_available < 2 * scheduler.num_running:
        return []
    sampled = {sample.lane for sample in plan.samples}
    continuing: list[Sequence] = []
    for group in scheduler.running:
        if group.beam is not None or group.batch is not None:
            return []
        for sequence in group.live:
            if sequence.lane in sampled:
                if len(sequence.token_ids) + 1 >= group.max_len:
                    return []
                continuing.append(sequence)
    return continuing


def must_wait(scheduler: Scheduler) -> bool:
    """Whether a step could compute nothing before some pages on their way, out or in, have got there."""
    cache, transfer = scheduler.cache, scheduler.kv_transfer
    if transfer is None or not (transfer.arriving or transfer.outgoing):
        return False
    if not scheduler.running:
        return bool(scheduler.waiting) and not _can_admit_alone(scheduler)
    first = scheduler.running[0]
    # A prompt got all its pages when it was admitted.
    behind = [(s, s.num_tokens) for s in first.live if s.num_computed < s.num_tokens] if first.forked else []
    held = set[int]().union(*transfer.outgoing_tables, *(s.pages for g in (first, *transfer.arriving) for s in g.live))
    if cache.prefixes is not None:
        held |= cache.prefixes.pinned_pages
    return scheduler.pages_to_continue(first, behind) > cache.pool.num_pages - len(held)


def _can_admit_alone(scheduler: Scheduler) -> bool:
    group, swap = scheduler.waiting[scheduler.next_waiting()], scheduler.cache.swap
    if group.status is SequenceStatus.SWAPPED and swap is not None:
        return swap.can_swap_in(group.live, len(group.live))
    return scheduler.can_admit(group, scheduler.config.max_num_batched_tokens, busy=False)
