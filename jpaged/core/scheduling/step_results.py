"""What a step gave is taken into the sequences: tokens, ends, logprobs, beams.

Lives here: apply_results, and the rule that ends a sequence.
Promises: a result for a sequence that has left meanwhile changes nothing.
Must not know: queues, budgets, how a sequence's pages and row are given back.
"""

from collections.abc import Callable

from jpaged.core.cache.caches import Cache
from jpaged.core.requests.beam import Candidate
from jpaged.core.requests.request import FinishReason
from jpaged.core.requests.sequence import Sequence, SequenceGroup
from jpaged.core.scheduling.plan import SchedulerOutput, SequenceDelta, StepResult
from jpaged.core.scheduling.plan_builder import PlanBuilder

End = Callable[[SequenceGroup, Sequence, FinishReason, int | str | None], None]


def apply_results(
    plan: SchedulerOutput, made: PlanBuilder, result: StepResult, cache: Cache, end: End, now: float
) -> list[SequenceDelta]:
    """Index written pages, append tokens, advance beams, and call `end` for every sequence that has ended."""
    for row, target in zip(plan.rows, made.row_targets, strict=True):
        sequence, written = target.sequence, row.start + row.num_tokens
        # Most rows end within a page, and have nothing to index.
        if sequence.lane == target.lane and written // cache.page_size > sequence.num_indexed:
            cache.commit(target.group, sequence, written)
    _keep_prompt_logprobs(made, result)
    deltas: list[SequenceDelta] = []
    searches: dict[int, SequenceGroup] = {}
    for i, (target, token_id) in enumerate(zip(made.sample_targets, result.token_ids, strict=True)):
        group, sequence, lane = target
        if sequence.lane != lane:
            continue  # it ended, or was aborted, while the step ran
        if sequence.deferred_finish is not None:
            deltas += _pad(group, sequence, token_id, end)
            continue
        logprobs = result.logprobs[i] if result.logprobs is not None else None
        if group.beam is not None:
            assert logprobs is not None, "a beam's result has its best continuations"
            group.beam.waiting[sequence.index] = logprobs
            searches[group.order] = group
            continue
        sequence.token_ids.append(token_id)
        request, first = group.request, group.metrics.first_token is None
        note_token(group, sequence, now)
        reason, stop_reason = end_of(group, sequence)
        if reason is not None and group.batch is not None and sequence.num_outputs < group.batch.num_outputs:
            sequence.deferred_finish = (reason, stop_reason)
            reason = stop_reason = None
        if reason is not None:
            end(group, sequence, reason, stop_reason)
        asked = first and request.params.prompt_logprobs is not None
        prompt_logprobs = tuple(group.prompt_logprobs) if asked else None
        deltas.append(
            SequenceDelta(request.request_id, sequence.index, token_id, logprobs, reason, stop_reason, prompt_logprobs)
        )
    for group in searches.values():
        deltas += _advance_beams(group, cache, end, now)
    return deltas


def _pad(group: SequenceGroup, sequence: Sequence, token_id: int, end: End) -> list[SequenceDelta]:
    """Take a token that nobody asked for, of a sequence that waits for its static batch; its delta at the end."""
    assert sequence.deferred_finish is not None and group.batch is not None
    sequence.token_ids.append(token_id)
    if sequence.num_outputs < group.batch.num_outputs:
        return []
    reason, stop_reason = sequence.deferred_finish
    end(group, sequence, reason, stop_reason)
    return [SequenceDelta(group.request.request_id, sequence.index, finish_reason=reason, stop_reason=stop_reason)]


def note_token(group: SequenceGroup, sequence: Sequence, now: float) -> None:
    """Note when a token came: as the request's first, or how long after the sequence's last."""
    if sequence.last_token is not None:
        group.metrics.itl.append(now - sequence.last_token)
    elif group.metrics.first_token is None:
        group.metrics.first_token = now
    sequence.last_token = now


def end_of(group: SequenceGroup, sequence: Sequence) -> tuple[FinishReason | None, int | None]:
    """Whether the sequence ends with its last token: the reason, and the stop token unless it is the model's own."""
    token_id = sequence.token_ids[-1]
    if token_id in group.stop_ids and sequence.num_outputs > group.request.params.min_tokens:
        asked = token_id in (group.request.params.stop_token_ids or ())
        return FinishReason.STOP, token_id if asked else None
    if len(sequence.token_ids) >= group.max_len:
        return FinishReason.LENGTH, None
    return None, None


def _advance_beams(group: SequenceGroup, cache: Cache, end: End, now: float) -> list[SequenceDelta]:
    """Once every beam has its result: the next beams take their seats, or the search is over."""
    beam, live = group.beam, group.live
    assert beam is not None
    if len(beam.waiting) < (len(live) if live[0].num_outputs else 1):
        return []
    note_token(group, group.sequences[0], now)
    survivors = beam.advance({s.index: tuple(s.token_ids[s.prompt_len :]) for s in live})
    if not beam.done:
        _replace_beams(group, survivors, cache)
        return []
    deltas = [
        SequenceDelta(group.request.request_id, i, finish_reason=hypothesis.finish_reason, hypothesis=hypothesis)
        for i, hypothesis in enumerate(beam.finished)
    ]
    for sequence, hypothesis in zip(live, beam.finished, strict=True):
        end(group, sequence, hypothesis.finish_reason, None)
    return deltas


def _replace_beams(group: SequenceGroup, survivors: list[Candidate], cache: Cache) -> None:
    """Each beam that lives on stays where it is; a further continuation of it takes the seat of one that does not.

    A taken seat has the KV of its parent: of the paged cache it shares every page, and the first write into the last
    of them copies it; of a reserving one every page is copied.
    """
    live = {sequence.index: sequence for sequence in group.live}
    staying: dict[int, Candidate] = {}
    moving: list[Candidate] = []
    for candidate in survivors:
        if candidate.parent in staying:
            moving.append(candidate)
        else:
            staying[candidate.parent] = candidate
    free = [sequence for index, sequence in live.items() if index not in staying]
    for sequence, candidate in zip(free, moving, strict=True):
        parent = live[candidate.parent]
        sequence.token_ids = list(parent.token_ids)
        cache.replace_with_fork(parent, sequence)
    seats = [*((live[index], candidate) for index, candidate in staying.items()), *zip(free, moving, strict=True)]
    assert group.beam is not None
    for sequence, candidate in seats:
        sequence.token_ids.append(candidate.token_id)
        sequence.needs_resend = True
        group.beam.scores[sequence.index] = candidate.score


def _keep_prompt_logprobs(made: PlanBuilder, result: StepResult) -> None:
    if not result.prompt_logprobs:
        return
    groups = {target.lane: target.group for target in made.row_targets}
    for part in result.prompt_logprobs:
        kept = groups[part.lane].prompt_logprobs
        # A resumed prompt gives the same entries again: they replace the first ones.
        kept[part.start - 1 : part.start - 1 + len(part.entries)] = part.entries
