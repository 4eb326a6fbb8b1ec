"""Beam search on the host: which continuations live on, which hypotheses have finished, when to stop.

Pure bookkeeping over scores, by the rules of Hugging Face's beam search; the same candidates give the same answer.
"""

from typing import NamedTuple

from jpaged.core.plan import Hypothesis, TokenLogprobs
from jpaged.core.requests.request import FinishReason
from jpaged.core.requests.sampling_params import BeamSearchParams


class Candidate(NamedTuple):
    """The beam `parent` continued by `token_id`; `score` is the summed log probability of all generated tokens."""

    score: float
    parent: int
    token_id: int


class BeamState:
    """The beams of one request: `scores[i]` is the running score of its sequence `i`.

    `waiting` holds the results of beams that have sampled while others of the group have not yet (after a
    preemption they come back at different steps): the beams advance together.
    """

    def __init__(self, params: BeamSearchParams, max_outputs: int, stop_ids: frozenset[int]) -> None:
        self.params = params
        self.width = params.beam_width
        self.max_outputs = max_outputs
        self.stop_ids = stop_ids
        self.scores = [0.0] * self.width
        self.finished: list[Hypothesis] = []
        self.waiting: dict[int, TokenLogprobs] = {}
        self.done = False

    def advance(self, outputs: dict[int, tuple[int, ...]]) -> list[Candidate]:
        """Take in the results in `waiting`, and return the `width` continuations that live on, best first.

        `outputs` are the generated ids of each beam so far. Sets `done` when no better hypothesis can come; the
        continuations then are of no use.
        """
        candidates = [
            Candidate(self.scores[parent] + logprob, parent, token_id)
            for parent, result in sorted(self.waiting.items())
            for token_id, logprob in zip(result.top_ids, result.top_logprobs, strict=True)
        ]
        self.waiting.clear()
        candidates.sort(key=lambda candidate: -candidate.score)
        length = len(next(iter(outputs.values()))) + 1
        ends = [length >= self.max_outputs or c.token_id in self.stop_ids for c in candidates]
        self._finish(candidates, ends, outputs, length)
        living = [candidate for candidate, end in zip(candidates, ends, strict=True) if not end][: self.width]
        self.done = not living or self._cannot_improve(living[0].score, length)
        return living

    def _finish(
        self, candidates: list[Candidate], ends: list[bool], outputs: dict[int, tuple[int, ...]], length: int
    ) -> None:
        # Those beyond the first `width` are there as a reserve, to continue the search; they never finish.
        for candidate, end in list(zip(candidates, ends, strict=True))[: self.width]:
            if not end:
                continue
            reason = FinishReason.STOP if candidate.token_id in self.stop_ids else FinishReason.LENGTH
            score = candidate.score / length**self.params.length_penalty
            ids = (*outputs[candidate.parent], candidate.token_id)
            self.finished.append(Hypothesis(score, ids, candidate.score, reason))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.width :]

    def _cannot_improve(self, best_running: float, length: int) -> bool:
        if len(self.finished) < self.width:
            return False
        if self.params.early_stopping is True:
            return True
        longest = self.params.early_stopping == "never" and self.params.length_penalty > 0
        reach = self.max_outputs if longest else length
        return best_running / reach**self.params.length_penalty <= self.finished[-1].score
