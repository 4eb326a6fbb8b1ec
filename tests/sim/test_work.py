"""The work of a step is read off its plan, row for row."""

from hypothesis import given
from hypothesis import strategies as st

from jpaged.core.plan import MoveKind, PageMove, Sample, ScheduledSequence, SchedulerOutput
from jpaged.sim.work import StepWork, padded_work_of, work_of


def plan_of(rows: list[tuple[int, int]], sampled: list[int], **moves) -> SchedulerOutput:
    scheduled = tuple(ScheduledSequence(slot, start, count) for slot, (start, count) in enumerate(rows))
    return SchedulerOutput(3, scheduled, tuple(Sample(row, row) for row in sampled), **moves)


def test_decode_rows_read_their_context_and_prefill_rows_attend_to_what_came_before():
    # Row 0 decodes its 100th token; row 1 computes a whole prompt of 4; row 2 the 6th to 8th token of one.
    work = work_of(plan_of([(99, 1), (0, 4), (5, 3)], [0, 1]), 16)
    assert work == StepWork(
        page_size=16,
        decode_rows=1,
        context_tokens=100,
        prefill_rows=2,
        prefill_tokens=7,
        prefill_pairs=(1 + 2 + 3 + 4) + (6 + 7 + 8),
        chunk_context_tokens=5,
        samples=2,
    )


def test_one_token_without_a_sample_or_without_a_past_is_no_decode_row():
    chunk = work_of(plan_of([(5, 1), (7, 1)], [0]), 16)
    assert (chunk.decode_rows, chunk.prefill_rows, chunk.prefill_pairs) == (1, 1, 8)
    prompt = work_of(plan_of([(0, 1)], [0]), 16)
    assert (prompt.decode_rows, prompt.prefill_tokens, prompt.prefill_pairs) == (0, 1, 1)


def test_a_fork_draws_several_times_from_one_row():
    work = work_of(plan_of([(0, 4)], [0, 0, 0]), 16)
    assert (work.prefill_rows, work.samples) == (1, 3)
    # Two draws and two rows, but one of the rows is not sampled.
    chunk = work_of(plan_of([(3, 1), (3, 1)], [0, 0]), 16)
    assert (chunk.decode_rows, chunk.prefill_rows) == (1, 1)


def test_pages_that_move_are_counted_and_an_empty_plan_is_no_work():
    kinds = [MoveKind.SWAP_OUT] * 2 + [MoveKind.SWAP_IN] + [MoveKind.COPY] * 3
    moves = tuple(PageMove(kind, 1, 2) for kind in kinds)
    work = work_of(plan_of([(8, 1)], [0], moves=moves), 4)
    assert (work.page_copies, work.pages_swapped_out, work.pages_swapped_in) == (3, 2, 1)
    assert work_of(SchedulerOutput(0), 4) == StepWork(4)
    assert work_of(SchedulerOutput(0, moves=moves), 4) == StepWork(
        4, page_copies=3, pages_swapped_out=2, pages_swapped_in=1
    )


ROWS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5), st.booleans()), max_size=12)


@given(ROWS)
def test_tokens_and_pairs_are_those_of_a_count_one_by_one(rows: list[tuple[int, int, bool]]):
    work = work_of(plan_of([row[:2] for row in rows], [i for i, row in enumerate(rows) if row[2]]), 16)
    decodes = [count == 1 and start > 0 and sampled for start, count, sampled in rows]
    keys = [[position + 1 for position in range(start, start + count)] for start, count, _ in rows]
    assert work.decode_rows + work.prefill_rows == len(rows)
    assert work.decode_rows == sum(decodes)
    assert work.context_tokens == sum(sum(k) for k, decode in zip(keys, decodes, strict=True) if decode)
    assert work.prefill_pairs == sum(sum(k) for k, decode in zip(keys, decodes, strict=True) if not decode)
    assert work.prefill_tokens == sum(len(k) for k, decode in zip(keys, decodes, strict=True) if not decode)


def test_padded_rows_cost_as_much_as_the_longest_of_their_kind():
    prompts = padded_work_of(plan_of([(0, 4), (0, 10), (0, 1)], [0, 1, 2]), 16)
    assert (prompts.prefill_rows, prompts.prefill_tokens, prompts.prefill_pairs) == (3, 30, 3 * 55)
    decodes = padded_work_of(plan_of([(4, 1), (10, 1), (1, 1)], [0, 1, 2]), 16)
    assert (decodes.decode_rows, decodes.context_tokens, decodes.samples) == (3, 33, 3)


@given(ROWS)
def test_padding_never_makes_work_less_and_changes_nothing_for_equal_rows(rows: list[tuple[int, int, bool]]):
    plan = plan_of([row[:2] for row in rows], [i for i, row in enumerate(rows) if row[2]])
    work, padded = work_of(plan, 16), padded_work_of(plan, 16)
    assert all(p >= w for p, w in zip(padded, work, strict=True))
    equal = plan_of([(9, 1)] * 3 + [(0, 4)] * 2, list(range(5)))
    assert padded_work_of(equal, 16) == work_of(equal, 16)
