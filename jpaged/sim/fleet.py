"""Many engines on one line of time: routed requests, outages, and pages that travel.

Whoever is earliest acts first, results before transfers before arrivals before steps where times are equal, then by
number; times are integer nanoseconds; nobody knows what another will only have done later.
"""

import heapq
from collections import abc, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.errors import REFUSALS
from jpaged.core.open_loop import check_arrivals
from jpaged.core.plan import SequenceDelta
from jpaged.core.requests.handoff import KVHandoff
from jpaged.core.requests.request import Request, RequestMetrics
from jpaged.core.scheduling.lookahead import must_wait
from jpaged.fleet.disaggregation import check_can_move, check_pair, send_all
from jpaged.fleet.router import Router
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import CostModel
from jpaged.sim.executor import SimExecutor
from jpaged.sim.links import Link
from jpaged.sim.stride import Stride

# What comes first where times are equal.
_RESULTS, _LANDING, _OUTAGE, _ARRIVAL = range(4)


class SimReplica:
    """An Engine over a SimExecutor. `strides`: let it run several decode steps at once; it changes no result."""

    def __init__(
        self,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        cost_model: CostModel,
        *,
        vocab_size: int,
        seed: int = 0,
        strides: bool = True,
    ) -> None:
        self.clock = VirtualClock()
        self.executor = SimExecutor(cost_model, self.clock, seed, page_size=cache.page_size)
        self.engine = Engine(scheduler, cache, self.executor, vocab_size=vocab_size, clock=self.clock)
        self._stride = Stride(self.engine, self.executor) if strides else None

    @property
    def now_ns(self) -> int:
        """When it is free to act, or when it acted last."""
        return self.clock.now_ns

    @property
    def can_act(self) -> bool:
        """Whether a step would compute something."""
        return self.engine.has_unfinished and not must_wait(self.engine.scheduler)

    def act(self, until_ns: int | None) -> list[SequenceDelta]:
        """Run a step and return its deltas, or run several before `until_ns` in which no sequence ends, without any."""
        if self._stride is not None and self._stride(None, until_ns):
            return []
        return self.engine.step()


class Outage(NamedTuple):
    """At `time_ns` the replica fails for good; its unfinished requests are routed again at once."""

    time_ns: int
    replica: int


@dataclass(frozen=True, kw_only=True)
class DecodePool:
    """The engines that go on after the first token, who of them does, and what pages reach each of them over.

    Each has an incoming link of its own, on which transfers follow one another. They overlap with the steps of both
    sides and slow neither; a request decodes in the first step that begins after its last page has come.
    """

    replicas: abc.Sequence[SimReplica]
    router: Router
    link: Link
    page_bytes: int


@dataclass(slots=True)
class _Member:
    """A replica in the loop: whether its last results are still to come, and who waits for its pages."""

    replica: SimReplica
    number: int
    role: str
    busy: bool = False
    gone: bool = False
    pending: "deque[tuple[_Member, KVHandoff]]" = field(default_factory=lambda: deque[tuple[_Member, KVHandoff]]())
    link_free_ns: int = 0


class FleetLoop:
    """Runs timed requests through replicas; with a DecodePool these compute prompts alone.

    `metrics[i]` is the metrics of request i (None: refused, for the reason in `refused[i]`, or lost to an outage that
    left nobody, `lost[i]`), `placed[i]` the number of the replica that got it, the last time.
    """

    def __init__(
        self,
        replicas: abc.Sequence[SimReplica],
        router: Router,
        requests: abc.Sequence[Request],
        arrivals_ns: abc.Sequence[int],
        *,
        decode: DecodePool | None = None,
        outages: abc.Sequence[Outage] = (),
    ) -> None:
        _check(replicas, router, requests, arrivals_ns, decode, outages)
        self.router = router
        self.metrics: list[RequestMetrics | None] = [None] * len(requests)
        self.placed: list[int | None] = [None] * len(requests)
        self.refused: dict[int, str] = {}
        self.lost: dict[int, str] = {}
        self.bytes_moved = 0
        self.transfer_ns = 0
        self.now_ns = 0
        self._requests = requests
        self._arrivals_ns = arrivals_ns
        self._number_of = {request.request_id: i for i, request in enumerate(requests)}
        self._decode = decode
        role = "both" if decode is None else "prefill"
        self._members = [_Member(replica, i, role) for i, replica in enumerate(replicas)]
        self._decoders = [_Member(r, i, "decode") for i, r in enumerate(() if decode is None else decode.replicas)]
        self._events: list[tuple[int, int, int, Any]] = []
        self._num_events = 0
        for outage in outages:
            self._push(outage.time_ns, _OUTAGE, outage.replica)
        if requests:
            self._push(arrivals_ns[0], _ARRIVAL, 0)

    def run(self) -> None:
        """Run until every request has ended, been refused or been lost."""
        while True:
            member = min(self._able(), key=lambda m: m.replica.now_ns, default=None)
            if self._events and (member is None or self._events[0][0] <= member.replica.now_ns):
                self._handle(heapq.heappop(self._events))
            elif member is not None:
                self._act(member)
            else:
                assert not self.router.num_in_flight, "requests are left that nobody works on"
                return

    def _able(self) -> list[_Member]:
        everyone = (*self._members, *self._decoders)
        return [m for m in everyone if not m.busy and not m.gone and m.replica.can_act]

    def _act(self, member: _Member) -> None:
        deltas = member.replica.act(self._bound(member))
        member.busy = True
        self._push(member.replica.now_ns, _RESULTS, (member, deltas))

    def _bound(self, member: _Member) -> int | None:
        """When something may happen to this replica that it does not know of yet."""
        times = [self._events[0][0]] if self._events else []
        if member.role == "decode":
            # A prompt that is computed next may send its pages here.
            times += [m.replica.now_ns for m in self._able() if m.role == "prefill"]
        return min(times, default=None)

    def _handle(self, event: tuple[int, int, int, Any]) -> None:
        self.now_ns, kind, _, what = event
        if kind == _RESULTS:
            self._results(*what)
        elif kind == _LANDING:
            self._landed(*what)
        elif kind == _OUTAGE:
            self._fail(what)
        else:
            self._arrive(what)

    def _arrive(self, number: int) -> None:
        if number + 1 < len(self._requests):
            self._push(self._arrivals_ns[number + 1], _ARRIVAL, number + 1)
        try:
            if self._decode is not None:
                engine = self._decode.replicas[0].engine
                check_can_move(self._requests[number], self._members[0].replica.engine, engine)
            self._place(number)
        except REFUSALS as error:
            self.refused[number] = str(error)

    def _place(self, number: int) -> None:
        request = self._requests[number]
        place = self.router.route(request)
        engine = self._members[place].replica.engine
        try:
            self.metrics[number] = engine.add(request)
        except REFUSALS:
            self.router.finished(request.request_id)
            raise
        self._wake(self._members[place])
        self.placed[number] = place

    def _results(self, member: _Member, deltas: list[SequenceDelta]) -> None:
        if member.gone:
            return
        member.busy = False
        router = self._decode.router if self._decode is not None and member.role == "decode" else self.router
        engine = member.replica.engine
        ended = {delta.request_id for delta in deltas if delta.finish_reason is not None}
        for name in sorted(ended, key=self._number_of.__getitem__):
            if engine.metrics(name) is None:
                router.finished(name)
        if member.role == "prefill":
            self._send(member, deltas)
        elif member.role == "decode":
            self._pull(member)

    def _send(self, member: _Member, deltas: list[SequenceDelta]) -> None:
        assert self._decode is not None
        for handoff in send_all(member.replica.engine, deltas):
            self.router.finished(handoff.request.request_id)
            target = self._decoders[self._decode.router.route(handoff.request)]
            target.pending.append((member, handoff))
            self._pull(target)

    def _pull(self, member: _Member) -> None:
        """Let the engine, between two steps, take in those who wait for it, in their order, as far as there is room."""
        assert self._decode is not None
        engine = member.replica.engine
        while member.pending and not member.busy and engine.can_receive(member.pending[0][1]):
            sender, handoff = member.pending.popleft()
            num_bytes = len(engine.receive(handoff)) * self._decode.page_bytes
            transfer_ns = self._decode.link.transfer_ns(num_bytes)
            member.link_free_ns = max(member.link_free_ns, self.now_ns) + transfer_ns
            self.bytes_moved += num_bytes
            self.transfer_ns += transfer_ns
            self._push(member.link_free_ns, _LANDING, (sender, member, handoff.request.request_id))

    def _landed(self, sender: _Member, member: _Member, name: str) -> None:
        member.replica.engine.received(name)
        sender.replica.engine.sent(name)
        self._wake(member)
        self._wake(sender)

    def _fail(self, replica: int) -> None:
        member = self._members[replica]
        member.gone = True
        lost = self.router.fail(member.number)
        member.replica.engine.abort_all()
        for request in lost:
            number = self._number_of[request.request_id]
            self.metrics[number] = self.placed[number] = None
            try:
                self._place(number)
            except REFUSALS as error:
                self.lost[number] = str(error)

    def _wake(self, member: _Member) -> None:
        """A replica that had nothing to do begins now, not when it stopped."""
        member.replica.clock.advance_to(self.now_ns)

    def _push(self, time_ns: int, kind: int, what: Any) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time_ns, kind, self._num_events, what))


def _check(
    replicas: abc.Sequence[SimReplica],
    router: Router,
    requests: abc.Sequence[Request],
    arrivals_ns: abc.Sequence[int],
    decode: DecodePool | None,
    outages: abc.Sequence[Outage],
) -> None:
    """Raise ValueError if the parts do not fit together."""
    check_arrivals(requests, arrivals_ns)
    sides = [("", replicas, router)]
    if decode is not None:
        sides.append(("decode ", decode.replicas, decode.router))
        if outages:
            raise ValueError("outages are of colocated replicas; leave them out with a DecodePool")
        for one in replicas:
            for other in decode.replicas:
                check_pair(one.engine, other.engine)
    for what, side, its_router in sides:
        if len(side) != len(its_router.loads):
            raise ValueError(f"{len(side)} {what}replicas, and a router of {len(its_router.loads)}: give as many")
    for outage in outages:
        if not 0 <= outage.replica < len(replicas):
            raise ValueError(f"outage of replica {outage.replica}: there are {len(replicas)}, numbered from 0")
