"""The loop that serves: requests in, outputs out, a step at a time, for as long as anybody wants something.

It has no thread and waits for nothing: a thread, a task of an event loop or a plain script may own it, one caller at
a time. A request that is added between two steps joins the batch of the next one, whatever runs already.
"""

from collections import abc
from typing import Protocol

from jpaged.core.errors import REFUSALS, EngineFailed, RequestRefused
from jpaged.core.plan import SequenceDelta
from jpaged.core.requests.request import FinishReason, Request, RequestMetrics
from jpaged.core.requests.response import Response, Text
from jpaged.core.scheduling.admission import Admission


class RequestEngine(Protocol):
    """What runs the requests: an Engine, or several that look like one."""

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is still at work."""
        ...

    def check(self, request: Request, ahead: int = 0) -> Admission:
        """How the request can be run, if sequences in the number of `ahead` are added before it. Raises REFUSALS."""
        ...

    def add(self, request: Request, admission: Admission | None = None) -> RequestMetrics:
        """Add a request (`admission`: what `check` said); its metrics, kept up to date. Raises REFUSALS."""
        ...

    def end(
        self, request_id: str, index: int | None, reason: FinishReason, stop_reason: int | str | None = None
    ) -> list[SequenceDelta]:
        """End a sequence of a request (None: all) and return its last deltas."""
        ...

    def step(self) -> list[SequenceDelta]:
        """Run one step and return what it gave."""
        ...

    def abort_all(self) -> None:
        """End every request and forget all that is cached."""
        ...


class EngineLoop:
    """An engine with the outputs of its requests; `text`: where their text comes from, None: they are ids alone.

    Every Response that `add` gave is filled by `step` until its request has ended, and not kept after that.
    """

    def __init__(self, engine: RequestEngine, text: Text | None = None) -> None:
        self.engine = engine
        self.text = text
        self._responses: dict[str, Response] = {}

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is still at work."""
        return self.engine.has_unfinished

    def add(self, request: Request) -> Response:
        """Add a request and return what will hold its outputs. Raises REFUSALS, and then changes nothing."""
        return self.add_all([request])[0]

    def add_all(self, requests: abc.Sequence[Request]) -> list[Response]:
        """Add all the requests of a call or, where one is refused, none. Raises REFUSALS with its place in the call."""
        admissions: list[Admission] = []
        ahead = 0
        for i, request in enumerate(requests):
            try:
                if request.params.stop and self.text is None:
                    raise RequestRefused("stop strings need text, and this model has no tokenizer: use stop_token_ids")
                admissions.append(self.engine.check(request, ahead))
            except REFUSALS as error:
                raise type(error)(f"prompts[{i}]: {error}" if len(requests) > 1 else str(error)) from None
            ahead += request.width
        responses = [Response(request, self.text, i) for i, request in enumerate(requests)]
        for response, admission in zip(responses, admissions, strict=True):
            response.metrics = self.engine.add(response.request, admission)
            self._responses[response.request.request_id] = response
        return responses

    def add_unread(self, request: Request) -> RequestMetrics:
        """Add a request whose outputs nobody wants; its metrics, kept up to date. Raises REFUSALS.

        Nothing looks at its tokens, so that a simulation spends no time on them, and stop strings do not end it.
        """
        return self.engine.add(request)

    def abort(self, request_id: str) -> Response | None:
        """End a request now, wherever it is; its response with the last deltas. None if there is none to be read."""
        responses = self.receive(self.engine.end(request_id, None, FinishReason.ABORT))
        return responses[0] if responses else None

    def step(self) -> list[Response]:
        """Run one step; the responses that got something by it. With nothing to do it does nothing.

        A step that fails or is interrupted ends every request in the engine, and every response says so (`error`,
        finish reason "abort"). Raises EngineFailed from the original exception; an interruption goes on as it is. The
        loop can be used again afterwards.
        """
        try:
            return self.receive(self.engine.step())
        except BaseException as error:
            failure = EngineFailed(f"a step failed, and every request in it ended: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.engine.abort_all()
            responses, self._responses = self._responses, {}
            for response in responses.values():
                response.fail(failure)
            if isinstance(error, Exception):
                raise failure from error
            raise

    def receive(self, deltas: list[SequenceDelta]) -> list[Response]:
        """The second half of `step`: what the engine gave becomes output, and a stop string ends its sequence."""
        changed: dict[str, Response] = {}
        if not self._responses:
            return []
        for delta in deltas:
            name = delta.request_id
            response = self._responses.get(name)
            if response is None:
                continue
            changed[name] = response
            stopped = response.receive(delta)
            if stopped is not None and delta.finish_reason is None:
                self.engine.end(name, delta.index, FinishReason.STOP, stopped)
        for name, response in changed.items():
            if response.finished:
                del self._responses[name]
        return list(changed.values())
