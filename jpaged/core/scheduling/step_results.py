"""What a step gave becomes known to the sequences: ids, ends, logprobs, the next beams.

A result for a sequence that has left meanwhile changes nothing.
"""

from jpaged.core.cache.memory_policy import MemoryPolicy
from jpaged.core.plan import SequenceDelta, StepResult
from jpaged.core.requests.beam import Candidate
from jpaged.core.requests.request import FinishReason
from jpaged.core.requests.sequence import Sequence, SequenceGroup, SequenceStatus
from jpaged.core.scheduling.lanes import Lanes
from jpaged.core.scheduling.plan_builder import PlanBuilder


class StepResults:
    """Applies the results of steps; a sequence that ends gives its pages and its lane back at once."""

    def __init__(self, cache: MemoryPolicy, lanes: Lanes) -> None:
        self._cache = cache
        self._lanes = lanes

    def apply(self, plan: PlanBuilder, result: StepResult, now: float) -> list[SequenceDelta]:
        """Index written pages, append tokens, advance beams, and end every sequence that has come to its end."""
        self._index_written(plan)
        _keep_prompt_logprobs(plan, result)
        deltas: list[SequenceDelta] = []
        searches: dict[int, SequenceGroup] = {}
        for i, (target, token_id) in enumerate(zip(plan.sample_targets, result.token_ids, strict=True)):
            group, sequence, lane = target
            if sequence.lane != lane:
                continue  # it ended, or was aborted, while the step ran
            if sequence.deferred_finish is not None:
                deltas += self._pad(group, sequence, token_id, now)
                continue
            logprobs = result.logprobs[i] if result.logprobs is not None else None
            if group.beam is not None:
                assert logprobs is not None, "a beam's result has its best continuations"
                group.beam.waiting[sequence.index] = logprobs
                searches[group.order] = group
                continue
            sequence.append(token_id)
            request, first = group.request, group.metrics.first_token is None
            note_token(group, sequence, now)
            reason, stop_reason = end_of(group, sequence)
            if reason is not None and group.batch is not None and sequence.num_outputs < group.batch.num_outputs:
                sequence.deferred_finish = (reason, stop_reason)
                reason = stop_reason = None
            if reason is not None:
                self.end(group, sequence, reason, stop_reason, now)
            asked = first and request.params.prompt_logprobs is not None
            prompt_logprobs = tuple(group.prompt_logprobs) if asked else None
            deltas.append(
                SequenceDelta(
                    request.request_id, sequence.index, token_id, logprobs, reason, stop_reason, prompt_logprobs
                )
            )
        for group in searches.values():
            deltas += self._advance_beams(group, now)
        return deltas

    def end(
        self, group: SequenceGroup, sequence: Sequence, reason: FinishReason, stop_reason: int | str | None, now: float
    ) -> None:
        """End a sequence, wherever it stands."""
        self._cache.release(sequence)
        if self._cache.swap is not None:
            self._cache.swap.discard(sequence)
        self._lanes.release(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        sequence.stop_reason = stop_reason
        if group.finished:
            group.status = SequenceStatus.FINISHED
            group.metrics.finished = now

    def _index_written(self, plan: PlanBuilder) -> None:
        prefixes, page_size = self._cache.prefixes, self._cache.page_size
        if prefixes is None:
            return
        for row, target in zip(plan.rows, plan.row_targets, strict=True):
            sequence, written = target.sequence, row.start + row.num_tokens
            # Most rows end within a page, and have nothing to index.
            if sequence.lane == target.lane and written // page_size > sequence.num_indexed:
                prefixes.commit(target.group, sequence, written)

    def _pad(self, group: SequenceGroup, sequence: Sequence, token_id: int, now: float) -> list[SequenceDelta]:
        """Append a token that nobody asked for, of a sequence that waits for its static batch; its delta at the end."""
        assert sequence.deferred_finish is not None and group.batch is not None
        sequence.append(token_id)
        if sequence.num_outputs < group.batch.num_outputs:
            return []
        reason, stop_reason = sequence.deferred_finish
        self.end(group, sequence, reason, stop_reason, now)
        return [SequenceDelta(group.request.request_id, sequence.index, finish_reason=reason, stop_reason=stop_reason)]

    def _advance_beams(self, group: SequenceGroup, now: float) -> list[SequenceDelta]:
        """Once every beam has its result: the next beams, or the end of the search."""
        beam, live = group.beam, group.live
        assert beam is not None
        if len(beam.waiting) < (len(live) if live[0].num_outputs else 1):
            return []
        note_token(group, group.sequences[0], now)
        survivors = beam.advance({s.index: tuple(s.token_ids[s.prompt_len :]) for s in live})
        if not beam.done:
            self._replace_beams(group, survivors)
            return []
        deltas = [
            SequenceDelta(group.request.request_id, i, finish_reason=hypothesis.finish_reason, hypothesis=hypothesis)
            for i, hypothesis in enumerate(beam.finished)
        ]
        for sequence, hypothesis in zip(live, beam.finished, strict=True):
            self.end(group, sequence, hypothesis.finish_reason, None, now)
        return deltas

    def _replace_beams(self, group: SequenceGroup, survivors: list[Candidate]) -> None:
        """Each beam that lives on stays where it is; one that does not is replaced by a fork of one that goes on twice.

        A fork has the KV of its parent: of the paged cache it shares every page, and the first write into the last of
        them copies it; of a reserving one every page is copied.
        """
        assert group.beam is not None
        live = {sequence.index: sequence for sequence in group.live}
        staying: dict[int, Candidate] = {}
        further: list[Candidate] = []
        for candidate in survivors:
            if candidate.parent in staying:
                further.append(candidate)
            else:
                staying[candidate.parent] = candidate
        given_up = [sequence for index, sequence in live.items() if index not in staying]
        for sequence, candidate in zip(given_up, further, strict=True):
            parent = live[candidate.parent]
            sequence.become(parent.token_ids)
            self._cache.fork(parent, sequence)
        going_on = [(live[index], candidate) for index, candidate in staying.items()]
        for sequence, candidate in (*going_on, *zip(given_up, further, strict=True)):
            sequence.append(candidate.token_id)
            sequence.needs_resend = True
            group.beam.scores[sequence.index] = candidate.score


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


def _keep_prompt_logprobs(plan: PlanBuilder, result: StepResult) -> None:
    if not result.prompt_logprobs:
        return
    groups = {target.lane: target.group for target in plan.row_targets}
    for part in result.prompt_logprobs:
        kept = groups[part.lane].prompt_logprobs
        # A resumed prompt gives the same entries again: they replace the first ones.
        kept[part.start - 1 : part.start - 1 + len(part.entries)] = part.entries
