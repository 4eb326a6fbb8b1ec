"""What a step has to do, in the numbers that its cost depends on: plain integers, read off the plan alone."""

from typing import NamedTuple

from jpaged.core.plan import MoveKind, SchedulerOutput


class StepWork(NamedTuple):
    """The cost-relevant facts of one step.

    A decode row computes one token, is sampled, and has earlier tokens; every other row is a prefill row. Tokens that
    attention reads include the row's own: `context_tokens` is their sum over decode rows, `prefill_pairs` the number of
    (query, key) pairs of prefill rows under a causal mask. `chunk_context_tokens` are the tokens that prefill rows find
    computed already (by an earlier chunk, or in the prefix cache). `samples` counts ids: a fork samples
    several from one row.
    """

    page_size: int
    decode_rows: int = 0
    context_tokens: int = 0
    prefill_rows: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    chunk_context_tokens: int = 0
    samples: int = 0
    page_copies: int = 0
    pages_swapped_out: int = 0
    pages_swapped_in: int = 0


# The columns of a log that a cost profile is made of. A step begins at start_ns, takes the host host_ns and then the
# device device_ns.
LOG_COLUMNS = ("step", "start_ns", "device_ns", "host_ns", *StepWork._fields)


def work_of(plan: SchedulerOutput, page_size: int) -> StepWork:
    """The work of a plan over pages of `page_size` tokens."""
    rows = plan.rows
    moves = (len(plan.samples), *_page_moves(plan))
    if not rows:
        return StepWork(page_size, 0, 0, 0, 0, 0, 0, *moves)
    _, starts, counts = zip(*rows, strict=True)
    sampled = {sample[0] for sample in plan.samples}
    # The step of most steps: every row decodes.
    if len(sampled) == len(rows) and max(counts) == 1 and min(starts) > 0:
        return StepWork(page_size, len(rows), sum(starts) + len(rows), 0, 0, 0, 0, *moves)
    decode_rows = context = tokens = pairs = chunk_context = 0
    for i, (start, count) in enumerate(zip(starts, counts, strict=True)):
        if count == 1 and start > 0 and i in sampled:
            decode_rows += 1
            context += start + 1
        else:
            tokens += count
            pairs += count * start + count * (count + 1) // 2
            chunk_context += start
    return StepWork(page_size, decode_rows, context, len(rows) - decode_rows, tokens, pairs, chunk_context, *moves)


def padded_work_of(plan: SchedulerOutput, page_size: int) -> StepWork:
    """The work of a plan when every row is padded to the longest of its kind, as in static batching.

    A decode row reads as many tokens as the one with the longest context, a prefill row computes as many tokens as
    the longest prompt. Rows that the plan leaves out are not paid for.
    """
    sampled = {sample.row for sample in plan.samples}
    decode_rows = prefill_rows = longest_context = longest_prompt = longest_start = 0
    for i, (_, start, count) in enumerate(plan.rows):
        if count == 1 and start > 0 and i in sampled:
            decode_rows += 1
            longest_context = max(longest_context, start + 1)
        else:
            prefill_rows += 1
            longest_prompt, longest_start = max(longest_prompt, count), max(longest_start, start)
    pairs = longest_prompt * longest_start + longest_prompt * (longest_prompt + 1) // 2
    return StepWork(
        page_size,
        decode_rows,
        decode_rows * longest_context,
        prefill_rows,
        prefill_rows * longest_prompt,
        prefill_rows * pairs,
        prefill_rows * longest_start,
        len(plan.samples),
        *_page_moves(plan),
    )


def _page_moves(plan: SchedulerOutput) -> tuple[int, int, int]:
    """Pages that a plan copies, swaps out and swaps in."""
    if not plan.moves:
        return 0, 0, 0
    kinds = [move.kind for move in plan.moves]
    return kinds.count(MoveKind.COPY), kinds.count(MoveKind.SWAP_OUT), kinds.count(MoveKind.SWAP_IN)
