"""Prompts on one engine, the tokens after them on another: the two seen as one.

The tokens are those of one engine; the sender's pages are let go of only after they have been copied; a request that is
refused or aborted leaves no trace on either side.
"""

import dataclasses
from collections import deque
from typing import Protocol

from jpaged.core.engine import Engine
from jpaged.core.errors import RequestRefused
from jpaged.core.plan import PageMove, SequenceDelta
from jpaged.core.requests.handoff import KVHandoff
from jpaged.core.requests.request import FinishReason, Request, RequestMetrics
from jpaged.core.scheduling.admission import Admission


class PageMover(Protocol):
    """Copies pages between the pools of two engines."""

    def move(self, moves: tuple[PageMove, ...]) -> None:
        """Copy each source page into its target; steps of either engine that come later see the copies."""
        ...


class Disaggregated:
    """Requests are computed by `prefill` up to their first token, then their pages move and `decode` goes on.

    An EngineLoop runs it as it runs an Engine.

    A request waits on the prefill side, in the order of arrival, until `decode` has rows and pages for it: whoever
    has them pulls. Both engines need the same page size, vocabulary and max_model_len, and clocks that agree; `prefill`
    plans one step at a time (overlap=False). Raises ValueError otherwise.
    """

    def __init__(self, prefill: Engine, decode: Engine, mover: PageMover) -> None:
        check_pair(prefill, decode)
        self.prefill = prefill
        self.decode = decode
        self.num_pages_moved = 0
        self._mover = mover
        self._pending: deque[KVHandoff] = deque()

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is still at work, or between the two."""
        return bool(self.prefill.has_unfinished or self._pending or self.decode.has_unfinished)

    def check(self, request: Request, ahead: int = 0) -> Admission:
        """How the request can be run. Raises REFUSALS, also if it has beams or only one engine could serve it."""
        if any(handoff.request.request_id == request.request_id for handoff in self._pending):
            raise RequestRefused(f"request_id={request.request_id!r}: a request with this id is still running")
        return check_can_move(request, self.prefill, self.decode, ahead)

    def add(self, request: Request, admission: Admission | None = None) -> RequestMetrics:
        """Add a request; its metrics, kept up to date. Raises what `check` raises."""
        return self.prefill.add(request, admission or self.check(request))

    def metrics(self, request_id: str) -> RequestMetrics | None:
        """The metrics of a live request, wherever it is. None if it is unknown."""
        pending = {handoff.request.request_id: handoff.metrics for handoff in self._pending}
        return self.prefill.metrics(request_id) or pending.get(request_id) or self.decode.metrics(request_id)

    def abort(self, request_id: str) -> list[SequenceDelta]:
        """End a request now, wherever it is; an unknown or finished id is no error. Returns its last deltas."""
        return self.end(request_id, None, FinishReason.ABORT)

    def end(
        self, request_id: str, index: int | None, reason: FinishReason, stop_reason: int | str | None = None
    ) -> list[SequenceDelta]:
        """End the sequence `index` of a request (None: all), wherever it is; returns its last deltas."""
        for i, handoff in enumerate(self._pending):
            if handoff.request.request_id == request_id:
                return self._end_pending(i, index, reason, stop_reason)
        ended = self.prefill.end(request_id, index, reason, stop_reason)
        return ended + self.decode.end(request_id, index, reason, stop_reason)

    def _end_pending(
        self, place: int, index: int | None, reason: FinishReason, stop_reason: int | str | None
    ) -> list[SequenceDelta]:
        """End sequences between the two; the pages stay until the others have moved, or go now if none is left."""
        handoff = self._pending[place]
        name = handoff.request.request_id
        ended = [s for s in handoff.sequences if index is None or s.index == index]
        left = tuple(s for s in handoff.sequences if s not in ended)
        if left:
            self._pending[place] = dataclasses.replace(handoff, sequences=left)
        else:
            del self._pending[place]
            self.prefill.sent(name)
            handoff.metrics.finished = self.decode.clock.now()
        return [SequenceDelta(name, s.index, finish_reason=reason, stop_reason=stop_reason) for s in ended]

    def step(self) -> list[SequenceDelta]:
        """Run a step of each engine that has work, and move what can be moved between the two; what they gave.

        If a step fails, every unfinished request is aborted on both sides before the exception goes on.
        """
        try:
            deltas = self.prefill.step()
            self._pending.extend(send_all(self.prefill, deltas))
            self._pull()
            return deltas + self.decode.step()
        except BaseException:
            self.abort_all()
            raise

    def abort_all(self) -> None:
        """End every request, on both sides and between them, and forget all that is cached."""
        self._pending.clear()
        self.prefill.abort_all()
        self.decode.abort_all()

    def _pull(self) -> None:
        while self._pending and self.decode.can_receive(self._pending[0]):
            handoff = self._pending.popleft()
            moves = self.decode.receive(handoff)
            self._mover.move(moves)
            self.num_pages_moved += len(moves)
            self.decode.received(handoff.request.request_id)
            self.prefill.sent(handoff.request.request_id)


def send_all(prefill: Engine, deltas: list[SequenceDelta]) -> list[KVHandoff]:
    """The handoffs of all requests that a step gave a token and did not end, in the order of their deltas."""
    names = dict.fromkeys(delta.request_id for delta in deltas if delta.token_id is not None)
    return [prefill.send(name) for name in names if prefill.metrics(name) is not None]


def check_pair(prefill: Engine, decode: Engine) -> None:
    """Raise ValueError unless requests can go from one engine to the other."""
    for name in ("page_size", "vocab_size", "max_model_len"):
        here, there = getattr(prefill.limits, name), getattr(decode.limits, name)
        if here != there:
            raise ValueError(f"{name}={here} of the prefill engine is {there} of the decode engine; give both the same")
    for engine, role in ((prefill, "prefill"), (decode, "decode")):
        if engine.scheduler.kv_transfer is None:
            raise ValueError(
                f"the {role} engine reserves pages or has static batches; give it reservation='none' and continuous "
                "batching"
            )
    if prefill.plans_ahead:
        raise ValueError("the prefill engine plans ahead; give it overlap=False (async_scheduling=False of an LLM)")


def check_can_move(request: Request, prefill: Engine, decode: Engine, ahead: int = 0) -> Admission:
    """How `prefill` can run a request that `decode` then goes on with. Raises REFUSALS if it cannot be served so."""
    if request.beam is not None:
        raise RequestRefused(
            f"request {request.request_id!r}: a beam search stays with one engine; use a colocated one"
        )
    admission = prefill.check(request, ahead)
    for role, width in (("prefill", admission.width), ("decode", decode.admission_of(request).width)):
        if width < request.width:
            raise RequestRefused(
                f"request {request.request_id!r}: the {role} engine's pool holds {width} of its {request.width} "
                "sequences at once; lower n or raise num_pages"
            )
    return admission
