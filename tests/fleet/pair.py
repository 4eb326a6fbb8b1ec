"""A prefill and a decode engine over two oracle executors, with a link that may be slow.

Lives here: Pair, which adds, steps, pulls and lands in any order, and asserts the core's invariants on both sides.
Promises: whatever a Pair lets finish is equal to the cache-free oracle; a page is copied while its sender holds it.
Must not know: which fault a test is after.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from rig import Rig, StepClock

from jpaged.core.plan import PageMove
from jpaged.core.requests.handoff import KVHandoff
from jpaged.core.requests.request import Request
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.core.scheduling.lookahead import must_wait
from jpaged.fleet.disaggregation import Disaggregated, check_can_move, send_all

VOCAB_SIZE = 16


class Pair:
    """Two rigs with the same clients and the same clock; `options` are of both engines."""

    def __init__(
        self,
        prefill_pages: int,
        decode_pages: int,
        page_size: int,
        *,
        decode: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        length = max(2, min(prefill_pages, decode_pages) * page_size)
        options = {"max_model_len": length, **options}
        self.prefill = Rig(prefill_pages, page_size, **options)
        self.decode = Rig(decode_pages, page_size, **{**options, **(decode or {})})
        self.rigs = (self.prefill, self.decode)
        self.clients = self.decode.clients = self.prefill.clients
        self.decode.tracks, self.decode.events = self.clients.tracks, self.clients.events
        clock = StepClock()
        self.prefill.engine.clock = self.decode.engine.clock = clock
        self.pending: deque[KVHandoff] = deque()
        self.on_the_way: deque[tuple[str, tuple[PageMove, ...]]] = deque()
        # The plan that first has a landed request tells of it as of a newcomer, but it has had its pages before.
        self.landed: set[str] = set()
        is_seat_of = self.decode._is_seat_of
        self.decode._is_seat_of = lambda slot, name: name in self.landed or is_seat_of(slot, name)
        self.num_added = self.num_moved = self.num_waits = 0

    def request(self, prompt: list[int], max_tokens: int = 4, **params: Any) -> Request:
        """A request that nobody has yet."""
        params.setdefault("temperature", 0.0 if params.get("n", 1) == 1 else 1.0)
        eos = params.pop("eos", ())
        seed = params.pop("seed", 0)
        self.num_added += 1
        return Request(
            request_id=f"r{self.num_added}",
            prompt_token_ids=tuple(prompt),
            params=SamplingParams(max_tokens=max_tokens, **params),
            seed=seed,
            eos_token_ids=eos,
            arrival=self.prefill.engine.clock.now(),
        )

    def add(self, prompt: list[int], max_tokens: int = 4, **params: Any) -> str:
        """Add a request that both can serve; its id. Raises ValueError."""
        request = self.request(prompt, max_tokens, **params)
        check_can_move(request, self.prefill.engine, self.decode.engine)
        self.take(request, self.prefill.engine.add)
        return request.request_id

    def take(self, request: Request, add: Callable[[Request], None]) -> None:
        """Add a request with `add`, and wait for its answer."""
        add(request)
        self.clients.add(request, self.prefill.engine._groups[request.request_id].max_len)

    def disaggregated(self) -> Disaggregated:
        """The two as one, with this pair as the mover."""
        return Disaggregated(self.prefill.engine, self.decode.engine, self)

    def move(self, moves: tuple[PageMove, ...]) -> None:
        """Copy what the sender's pages hold into the receiver's."""
        for _, source, target in moves:
            assert self.prefill.cache.pool.ref_count(source) > 0, "a page is copied after its sender let go of it"
            assert self.decode.cache.pool.ref_count(target) > 0, "a page is copied to nobody"
            self.decode.executor._fill(target, self.prefill.executor.page(source))
        self.num_moved += len(moves)

    def step_prefill(self) -> None:
        """A step of the prefill engine; whoever got a first token waits to be pulled."""
        engine = self.prefill.engine
        self.num_waits += must_wait(engine.scheduler)
        deltas = engine.step()
        self.clients.take(deltas)
        self.pending.extend(send_all(engine, deltas))

    def step_decode(self) -> None:
        """A step of the decode engine."""
        self.num_waits += must_wait(self.decode.engine.scheduler)
        self.clients.take(self.decode.engine.step())
        if self.decode.executor.plans:
            rows = self.decode.executor.rows.values()
            self.landed -= {row.admitted.request_id for row in rows}

    def pull(self) -> None:
        """Give the first who waits room on the decode side, if there is any."""
        if self.pending and self.decode.engine.can_receive(self.pending[0]):
            handoff = self.pending.popleft()
            self.on_the_way.append((handoff.request.request_id, self.decode.engine.receive(handoff)))

    def land(self) -> None:
        """Copy the pages that are longest on their way."""
        if self.on_the_way:
            name, moves = self.on_the_way.popleft()
            self.move(moves)
            self.decode.engine.received(name)
            self.landed.add(name)
            self.prefill.engine.sent(name)

    def check(self) -> None:
        """Assert what holds between steps, on both sides."""
        for rig in self.rigs:
            rig.check()

    def run(self, rng: random.Random, limit: int = 5000) -> None:
        """Do what is to be done, in any order, to the end; fails if that takes more than `limit` acts."""
        acts = (self.step_prefill, self.step_decode, self.step_decode, self.pull, self.land)
        for _ in range(limit):
            if not self.busy:
                self.check_idle()
                return
            rng.choice(acts)()
            self.check()
        raise AssertionError(f"not idle after {limit} acts")

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        engines = (rig.engine.has_unfinished for rig in self.rigs)
        return any(engines) or bool(self.pending or self.on_the_way)

    def check_idle(self) -> None:
        """Assert that nothing is held on either side, and that everyone has their answer."""
        for rig in self.rigs:
            rig.check_reset()
