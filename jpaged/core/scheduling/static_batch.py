"""Static batches, as FasterTransformer has them: requests start together, run for the longest, end together."""

from collections import abc

from jpaged.config.options import SchedulerConfig
from jpaged.core.cache.memory_policy import MemoryPolicy
from jpaged.core.cache.page_pool import pages_for
from jpaged.core.requests.sequence import SequenceGroup, StaticBatch


def form_batch(waiting: abc.Sequence[SequenceGroup], config: SchedulerConfig, cache: MemoryPolicy) -> None:
    """Give the first waiting groups that fit one batch that batch, first come, first served; the others have none.

    It stops at the first that does not fit. A first group that is too large by itself runs alone.
    """
    longest = config.max_static_batch_len or config.max_model_len
    batch, chosen, count = StaticBatch(0, 0), list[SequenceGroup](), 0
    for group in waiting:
        prompt_len = len(group.request.prompt_token_ids)
        larger = StaticBatch(max(batch.prompt_len, prompt_len), max(batch.num_outputs, group.max_len - prompt_len))
        count += group.width
        pages = count * pages_for(sum(larger), cache.page_size)
        fits = count <= config.max_num_seqs and sum(larger) <= longest and pages <= cache.pool.num_pages
        if chosen and not fits:
            break
        batch = larger
        chosen.append(group)
    for group in waiting:
        group.batch = batch if group in chosen else None
