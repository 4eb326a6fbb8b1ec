"""Static batches, as FasterTransformer has them: requests start together, run for the longest, end together.

Lives here: next_batch, which forms one.
Promises: first come, first served; the first waiting group always gets its turn.
Must not know: pages, plans.
"""

from collections.abc import Callable, Sequence

from jpaged.core.requests.sequence import SequenceGroup, StaticBatch


def next_batch(
    waiting: Sequence[SequenceGroup], has_room: Callable[[int, int], bool]
) -> tuple[Sequence[SequenceGroup], StaticBatch]:
    """The first waiting groups that fit one batch: `has_room` says whether so many sequences of so many tokens do.

    It stops at the first that does not fit. A first group that is too large by itself runs alone.
    """
    prompt_len = num_outputs = count = taken = 0
    for group in waiting:
        longest_prompt = max(prompt_len, len(group.request.prompt_token_ids))
        longest_output = max(num_outputs, group.max_len - len(group.request.prompt_token_ids))
        count += group.width
        if taken and not has_room(count, longest_prompt + longest_output):
            break
        prompt_len, num_outputs = longest_prompt, longest_output
        taken += 1
    return waiting[:taken], StaticBatch(prompt_len, num_outputs)
