"""Deltas become outputs: ids to text, stop strings, logprobs with their tokens.

Joined deltas are the final text; there is one logprob entry per token; nothing comes after the end. Text comes in
through the Text role, so a core without a tokenizer makes the same outputs without text.
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jpaged.core.errors import EngineFailed
from jpaged.core.plan import Hypothesis, SequenceDelta, TokenLogprobs
from jpaged.core.requests.request import FinishReason, Request, RequestMetrics


class TextStream(Protocol):
    """The text of one sequence, as its tokens come."""

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None."""
        ...

    def push(self, token_id: int) -> str:
        """The text that became final with this token, often ""."""
        ...

    def finish(self) -> str:
        """What was still held back. Look at `stopped` once more afterwards."""
        ...


class Text(Protocol):
    """Turns ids into text."""

    def stream(self, request: Request) -> TextStream:
        """The text of a sequence of the request, from its first output token on."""
        ...

    def spell(self, token_id: int) -> str:
        """The text of one id, also of a special one."""
        ...


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log probability, its rank (1 is the most likely) and its text."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One generated sequence of a request; `token_ids` leaves the prompt out."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class CompletionDelta(NamedTuple):
    """What one step added to one sequence: the joined `text` of all its deltas is `CompletionOutput.text`.

    `prompt_index` is the prompt's place in the call, `index` the sequence's among the prompt's n. `token_ids` may
    come without text (held back until a character or a possible stop string is whole). `logprobs` has an entry per
    token id, where they were asked for.
    """

    request_id: str
    prompt_index: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """What a request has given so far; `outputs` are in the order of their index."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None


class Response:
    """The outputs of one request in the making.

    `outputs` grow with its deltas; `metrics` are kept up to date by the engine. `error`: a step failed while the
    request was in the engine; its outputs then end with "abort".
    """

    def __init__(self, request: Request, text: Text | None, prompt_index: int = 0) -> None:
        self.request = request
        self.prompt_index = prompt_index
        self.metrics: RequestMetrics | None = None
        self.error: EngineFailed | None = None
        params = request.params
        # Beams are chosen by logprobs, but the user did not ask for those.
        wants_logprobs = params.logprobs is not None and request.beam is None
        self.outputs = [
            CompletionOutput(
                index=i,
                text="",
                token_ids=[],
                logprobs=[] if wants_logprobs else None,
                cumulative_logprob=0.0 if wants_logprobs or params.chooses else None,
            )
            for i in range(request.width)
        ]
        self._text = text
        source = text if params.detokenize else None
        self._streams = [None if source is None else source.stream(request) for _ in self.outputs]
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._unread: list[CompletionDelta] = []

    @property
    def finished(self) -> bool:
        """Whether every sequence has ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    def read(self) -> list[CompletionDelta]:
        """What was added since the last call."""
        deltas, self._unread = self._unread, []
        return deltas

    def receive(self, delta: SequenceDelta) -> str | None:
        """Add one delta. Returns the stop string that it completed, if any: the sequence is to be ended."""
        output, stream = self.outputs[delta.index], self._streams[delta.index]
        if output.finish_reason is not None:
            return None
        if delta.hypothesis is not None:
            return self._receive_hypothesis(output, stream, delta.hypothesis)
        if delta.prompt_logprobs is not None:
            targets = self.request.prompt_token_ids[1:]
            entries = [self._entry(*pair) for pair in zip(targets, delta.prompt_logprobs, strict=True)]
            # The first token of a prompt has nothing before it that could predict it.
            self._prompt_logprobs = [None, *entries]
        reason, stop_reason, stopped, text = delta.finish_reason, delta.stop_reason, None, ""
        token_id = delta.token_id
        if token_id is not None and stream is not None and not (reason is FinishReason.STOP and self._hides_stop):
            text = stream.push(token_id)
            stopped = stream.stopped
        if reason is not None and stopped is None and stream is not None:
            text += stream.finish()
            stopped = stream.stopped
        if stopped is not None:
            reason, stop_reason = FinishReason.STOP, stopped
        self._append(output, text, () if token_id is None else (token_id,), reason, stop_reason, delta.logprobs)
        return stopped

    def fail(self, error: EngineFailed) -> None:
        """End what has not ended, after a failed step; what a text stream still holds back is lost."""
        self.error = error
        for output in self.outputs:
            if output.finish_reason is None:
                self._append(output, "", (), FinishReason.ABORT)

    def result(self) -> RequestOutput:
        """Everything so far; of best_of sequences the n likeliest, numbered by their rank."""
        outputs, params = self.outputs, self.request.params
        if params.chooses:
            ranked = sorted(outputs, key=lambda output: -(output.cumulative_logprob or 0.0))
            outputs = [dataclasses.replace(output, index=i) for i, output in enumerate(ranked[: params.n])]
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=list(self.request.prompt_token_ids),
            outputs=outputs,
            finished=self.finished,
            prompt_logprobs=None if params.prompt_logprobs is None else self._prompt_logprobs or [None],
            num_cached_tokens=self.metrics.num_cached_tokens if self.metrics else 0,
            metrics=self.metrics,
        )

    @property
    def _hides_stop(self) -> bool:
        """Whether the token that stops a sequence is left out of its text."""
        return not self.request.params.include_stop_str_in_output

    def _append(
        self,
        output: CompletionOutput,
        text: str,
        token_ids: tuple[int, ...],
        reason: FinishReason | None,
        stop_reason: int | str | None = None,
        logprobs: TokenLogprobs | None = None,
    ) -> None:
        """Add to an output, and leave the same for whoever reads the deltas."""
        entries = None
        if logprobs is not None:
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + logprobs.logprob
            if output.logprobs is not None:
                entries = (self._entry(token_ids[0], logprobs),)
                output.logprobs.extend(entries)
        output.token_ids.extend(token_ids)
        if text:
            output.text += text
        if reason is not None:
            output.finish_reason, output.stop_reason = str(reason), stop_reason
        place = (self.request.request_id, self.prompt_index, output.index)
        end = (output.finish_reason, output.stop_reason)
        self._unread.append(CompletionDelta(*place, text, token_ids, *end, entries))

    def _receive_hypothesis(self, output: CompletionOutput, stream: TextStream | None, found: Hypothesis) -> None:
        """Add a finished beam, whole: nothing of it was shown before, for it might have lost."""
        ids, text = found.token_ids, ""
        if stream is not None:
            hidden = found.finish_reason is FinishReason.STOP and self._hides_stop
            text = "".join(stream.push(token) for token in (ids[:-1] if hidden else ids)) + stream.finish()
        output.cumulative_logprob = found.cumulative_logprob
        self._append(output, text, ids, found.finish_reason)

    def _entry(self, token_id: int, entry: TokenLogprobs) -> dict[int, Logprob]:
        """The chosen token first, then the most likely ones in order."""
        entries = {token_id: Logprob(entry.logprob, entry.rank, self._spell(token_id))}
        for rank, (other, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), start=1):
            if other != token_id:
                entries[other] = Logprob(logprob, rank, self._spell(other))
        return entries

    def _spell(self, token_id: int) -> str | None:
        return None if self._text is None else self._text.spell(token_id)
