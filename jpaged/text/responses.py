"""Deltas become outputs: ids to text, stop strings, logprobs with their tokens.

Lives here: Response, what a caller gets of one request while it runs and in the end.
Promises: joined deltas are the final text; one logprob entry a token; nothing comes after the end.
Must not know: engines, schedulers, devices.
"""

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from jpaged.core.requests.request import (
    CompletionDelta,
    CompletionOutput,
    FinishReason,
    Logprob,
    Request,
    RequestMetrics,
    RequestOutput,
)
from jpaged.core.scheduling.plan import Hypothesis, SequenceDelta, TokenLogprobs
from jpaged.text.text_stream import TextStream


class TextDecoder(Protocol):
    """What a response needs of a tokenizer."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of some ids."""
        ...


class Response:
    """The outputs of one request in the making. `pending` holds the deltas that nobody has taken yet."""

    def __init__(self, request: Request, prompt_index: int, decoder: TextDecoder | None) -> None:
        self.request = request
        self.prompt_index = prompt_index
        self.pending: deque[CompletionDelta] = deque()
        self.metrics: RequestMetrics | None = None
        self._decoder = decoder
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self.outputs = [
            CompletionOutput(
                index=i,
                text="",
                token_ids=[],
                logprobs=[] if self._wants_logprobs else None,
                cumulative_logprob=0.0 if self._wants_logprobs or request.params.chooses else None,
            )
            for i in range(request.width)
        ]
        self._streams = [self._text_stream() for _ in range(request.width)]

    @property
    def finished(self) -> bool:
        """Whether every sequence has ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    def take(self, delta: SequenceDelta) -> str | None:
        """Take in one delta. Returns the stop string that it completed, if any: the sequence is to be ended."""
        output, stream = self.outputs[delta.index], self._streams[delta.index]
        if output.finish_reason is not None:
            return None
        if delta.hypothesis is not None:
            return self._take_hypothesis(output, delta.hypothesis)
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = self._prompt_entries(delta.prompt_logprobs)
        reason, stop_reason, stopped, text = delta.finish_reason, delta.stop_reason, None, ""
        token_id = delta.token_id
        if token_id is not None:
            output.token_ids.append(token_id)
            if delta.logprobs is not None:
                self._take_logprobs(output, token_id, delta.logprobs)
            if stream is not None and not (reason is FinishReason.STOP and self._hides_stop):
                text = stream.push(token_id)
                stopped = stream.stopped
        if reason is not None and stopped is None and stream is not None:
            text += stream.finish()
            stopped = stream.stopped
        if stopped is not None:
            reason, stop_reason = FinishReason.STOP, stopped
        if text:
            output.text += text
        if reason is not None:
            output.finish_reason, output.stop_reason = str(reason), stop_reason
        self._show(output, text, () if token_id is None else (token_id,))
        return stopped

    def abort(self) -> None:
        """End what has not ended, after a failure; what a text stream still holds back is lost."""
        for output in self.outputs:
            if output.finish_reason is None:
                output.finish_reason = str(FinishReason.ABORT)
                self._show(output, "", ())

    def result(self) -> RequestOutput:
        """Everything so far."""
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=list(self.request.prompt_token_ids),
            outputs=self._chosen(),
            finished=self.finished,
            prompt_logprobs=self._all_prompt_logprobs(),
            num_cached_tokens=self.metrics.num_cached_tokens if self.metrics else 0,
            metrics=self.metrics,
        )

    @property
    def _hides_stop(self) -> bool:
        """Whether the token that stops a sequence is left out of its text."""
        return not self.request.params.include_stop_str_in_output

    def _take_logprobs(self, output: CompletionOutput, token_id: int, logprobs: TokenLogprobs) -> None:
        output.cumulative_logprob = (output.cumulative_logprob or 0.0) + logprobs.logprob
        if output.logprobs is not None:
            output.logprobs.append(self._entry(token_id, logprobs))

    def _show(self, output: CompletionOutput, text: str, token_ids: tuple[int, ...]) -> None:
        """Leave what was just added to an output for whoever reads the stream."""
        self.pending.append(
            CompletionDelta(
                self.request.request_id,
                self.prompt_index,
                output.index,
                text,
                token_ids,
                output.finish_reason,
                output.stop_reason,
            )
        )

    def _chosen(self) -> list[CompletionOutput]:
        """The outputs to return: all, or the n likeliest of best_of, numbered by their place."""
        params = self.request.params
        if not params.chooses:
            return self.outputs
        ranked = sorted(self.outputs, key=lambda output: -(output.cumulative_logprob or 0.0))
        return [dataclasses.replace(output, index=i) for i, output in enumerate(ranked[: params.n])]

    @property
    def _wants_logprobs(self) -> bool:
        # Beams are chosen by logprobs, but the user did not ask for those.
        return self.request.params.logprobs is not None and self.request.beam is None

    def _take_hypothesis(self, output: CompletionOutput, hypothesis: Hypothesis) -> None:
        """A finished beam, whole: nothing of it was shown before, for it might have lost."""
        stream = self._streams[output.index]
        ids = hypothesis.token_ids
        stopped = hypothesis.finish_reason is FinishReason.STOP
        hidden = stopped and self._hides_stop
        if stream is not None:
            output.text = "".join(stream.push(token) for token in (ids[:-1] if hidden else ids)) + stream.finish()
        output.token_ids = list(ids)
        output.cumulative_logprob = hypothesis.cumulative_logprob
        output.finish_reason = str(hypothesis.finish_reason)
        self._show(output, output.text, ids)

    def _text_stream(self) -> TextStream | None:
        params = self.request.params
        if self._decoder is None or not params.detokenize:
            return None
        return TextStream(
            self._decoder,
            prompt_token_ids=self.request.prompt_token_ids,
            stop=params.stop or (),
            skip_special_tokens=params.skip_special_tokens,
            include_stop_str_in_output=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )

    def _all_prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        if self.request.params.prompt_logprobs is None:
            return None
        # The first token of a prompt has nothing before it that could predict it.
        return self._prompt_logprobs or [None]

    def _prompt_entries(self, entries: tuple[TokenLogprobs, ...]) -> list[dict[int, Logprob] | None]:
        targets = self.request.prompt_token_ids[1:]
        return [None, *(self._entry(token, entry) for token, entry in zip(targets, entries, strict=True))]

    def _entry(self, token_id: int, entry: TokenLogprobs) -> dict[int, Logprob]:
        """The chosen token first, then the most likely ones in order."""
        made = {token_id: Logprob(entry.logprob, entry.rank, self._spell(token_id))}
        for rank, (other, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), start=1):
            if other != token_id:
                made[other] = Logprob(logprob, rank, self._spell(other))
        return made

    def _spell(self, token_id: int) -> str | None:
        return None if self._decoder is None else self._decoder.decode([token_id], skip_special_tokens=False)
