"""Planning a step while the one before it still runs.

The plan is the one that would be made afterwards, unless a stop token ends a sequence meanwhile; then its row is
computed for nothing, and no token depends on it.
"""

from jpaged.core.requests.sequence import Sequence
from jpaged.core.scheduling.plan import SchedulerOutput
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
