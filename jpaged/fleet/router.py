"""Which replica gets a request: the policies by name, and the router with its own table of what each has to do.

Every request is with exactly one replica that is up, or with none; load is read from the table, never asked for; the
same calls make the same choices.
"""

import math
from collections import OrderedDict, abc
from collections.abc import Callable
from typing import NamedTuple, Protocol

from jpaged.config.engine import require_int
from jpaged.core.cache.prefix_cache import page_hash, root_hash
from jpaged.core.errors import QueueFull, RequestRefused
from jpaged.core.requests.request import Request
from jpaged.core.scheduling.policy import load_policy


class ReplicaLoad(NamedTuple):
    """A replica's unfinished requests and the tokens they are expected to take; `life` counts how often it failed."""

    number: int
    tokens: int
    requests: int
    life: int = 0


class RoutingPolicy(Protocol):
    """Chooses a replica for a request."""

    def __call__(self, request: Request, replicas: abc.Sequence[ReplicaLoad]) -> int:
        """The index in `replicas` (those that take requests, never empty, by number) of the one that gets it."""
        ...


class RoundRobin:
    """Each replica in turn; one that is down is passed over."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, request: Request, replicas: abc.Sequence[ReplicaLoad]) -> int:
        """The first replica after the one that was chosen last."""
        index = next((i for i, replica in enumerate(replicas) if replica.number > self._last), 0)
        self._last = replicas[index].number
        return index


def least_outstanding_tokens(request: Request, replicas: abc.Sequence[ReplicaLoad]) -> int:
    """The replica with the fewest tokens still to do; among equals the one with fewer requests, then the first."""
    return min(range(len(replicas)), key=lambda i: (replicas[i].tokens, replicas[i].requests, i))


class PrefixAffinity:
    """The replica that was last given the longest known prefix of the prompt; else the one with the least to do.

    What everyone begins with, such as a system prompt, is no reason to send all to one: a prefix counts if it is at
    least `min_share` of the prompt's full pages.

    A prefix is told by the chained hash of its full pages of `page_size` tokens, the same as the prefix cache's, up to
    `max_pages` of them. A replica is overloaded, and passed over, if it has more than `factor` times the least load of
    any and `slack_tokens` besides. `max_prefixes` hashes are remembered, the latest used.
    """

    def __init__(
        self,
        page_size: int,
        *,
        max_pages: int = 1024,
        min_share: float = 0.25,
        factor: float = 1.25,
        slack_tokens: int = 8192,
        max_prefixes: int = 1 << 20,
    ) -> None:
        for name, value in (("page_size", page_size), ("max_pages", max_pages), ("max_prefixes", max_prefixes)):
            require_int(name, value, 1, None)
        require_int("slack_tokens", slack_tokens, 0, None)
        if not 0 <= min_share <= 1:
            raise ValueError(f"min_share={min_share!r}: a share of the prompt is between 0 and 1")
        if not factor >= 1:
            raise ValueError(f"factor={factor!r}: at least 1, or the least loaded replica would be overloaded")
        self._page_size = page_size
        self._max_pages = max_pages
        self._min_share = min_share
        self._factor = factor
        self._slack_tokens = slack_tokens
        self._max_prefixes = max_prefixes
        # Where each prefix went last, and which life of that replica it was: a failure empties a cache.
        self._went_to: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self._given: dict[int, int] = {}

    def __call__(self, request: Request, replicas: abc.Sequence[ReplicaLoad]) -> int:
        """The index of the replica to choose."""
        hashes = list(self._hashes(request))
        index = self._where_known(hashes, replicas)
        if index is None:
            index = self._for_a_new_one(replicas)
        self._remember(hashes, replicas[index])
        self._given[replicas[index].number] = self._given.get(replicas[index].number, 0) + len(request.prompt_token_ids)
        return index

    def overloaded(self, replica: ReplicaLoad, replicas: abc.Sequence[ReplicaLoad]) -> bool:
        """Whether the replica has so much more to do than another that a cached prefix is no reason to choose it."""
        least = min(other.tokens for other in replicas)
        return replica.tokens > self._factor * least + self._slack_tokens

    def _where_known(self, hashes: list[bytes], replicas: abc.Sequence[ReplicaLoad]) -> int | None:
        places = {(replica.number, replica.life): i for i, replica in enumerate(replicas)}
        shortest = max(1, math.ceil(self._min_share * len(hashes)))
        for digest in reversed(hashes[shortest - 1 :]):
            index = places.get(self._went_to.get(digest, (-1, -1)))
            if index is not None and not self.overloaded(replicas[index], replicas):
                return index
        return None

    def _for_a_new_one(self, replicas: abc.Sequence[ReplicaLoad]) -> int:
        """The least loaded; among equals, as idle ones are, whoever was given the fewest prompt tokens so far."""
        given = [self._given.get(replica.number, 0) for replica in replicas]
        return min(range(len(replicas)), key=lambda i: (replicas[i].tokens, given[i], i))

    def _remember(self, hashes: list[bytes], replica: ReplicaLoad) -> None:
        for digest in hashes:
            self._went_to[digest] = (replica.number, replica.life)
            self._went_to.move_to_end(digest)
        while len(self._went_to) > self._max_prefixes:
            self._went_to.popitem(last=False)

    def _hashes(self, request: Request) -> abc.Iterator[bytes]:
        ids, size = request.prompt_token_ids, self._page_size
        digest = root_hash(request.cache_salt)
        for i in range(min(len(ids) // size, self._max_pages)):
            digest = page_hash(digest, ids[i * size : (i + 1) * size])
            yield digest


ROUTING: dict[str, Callable[[int], RoutingPolicy]] = {
    "round_robin": lambda page_size: RoundRobin(),
    "least_outstanding_tokens": lambda page_size: least_outstanding_tokens,
    "prefix_affinity": lambda page_size: PrefixAffinity(page_size),
}
"""The policies by name: made anew for each router, for engines with pages of this many tokens."""


class _InFlight(NamedTuple):
    request: Request
    replica: int
    tokens: int


class _State:
    """What is known of a replica: whether it is up and takes requests, its load, and how often it has failed."""

    def __init__(self) -> None:
        self.up = True
        self.takes = True
        self.tokens = 0
        self.requests = 0
        self.life = 0


class Router:
    """Spreads requests over `num_replicas` replicas, which are numbered from 0.

    `policy` is a name in ROUTING or the import path "package.module:name" of a RoutingPolicy. A request weighs its
    prompt and the output that is expected of it: `expected_output_tokens`, or its max_tokens if that is less. (What it
    will really be nobody knows.) It weighs that until it has ended. Raises ValueError.
    """

    def __init__(
        self,
        num_replicas: int,
        policy: str = "least_outstanding_tokens",
        *,
        page_size: int = 16,
        expected_output_tokens: int = 256,
    ) -> None:
        require_int("num_replicas", num_replicas, 1, None)
        require_int("page_size", page_size, 1, None)
        require_int("expected_output_tokens", expected_output_tokens, 0, None)
        known = ROUTING[policy](page_size) if policy in ROUTING else None
        self._policy: RoutingPolicy = known or load_policy("routing_policy", policy, dict(ROUTING))
        self._expected = expected_output_tokens
        self._states = [_State() for _ in range(num_replicas)]
        self._in_flight: dict[str, _InFlight] = {}

    @property
    def loads(self) -> tuple[ReplicaLoad, ...]:
        """The load of every replica, whether or not it is up."""
        return tuple(ReplicaLoad(i, s.tokens, s.requests, s.life) for i, s in enumerate(self._states))

    @property
    def num_in_flight(self) -> int:
        """Requests that some replica has."""
        return len(self._in_flight)

    def replica_of(self, request_id: str) -> int | None:
        """The replica that has the request; None: none has it now."""
        entry = self._in_flight.get(request_id)
        return None if entry is None else entry.replica

    def route(self, request: Request) -> int:
        """The number of the replica that gets the request, which has it from now on.

        Raises RequestRefused if one has it already, QueueFull if no replica takes requests, and ValueError if the
        policy chooses none of those that it was offered.
        """
        name = request.request_id
        if name in self._in_flight:
            raise RequestRefused(f"request_id={name!r}: replica {self._in_flight[name].replica} has it already")
        offered = [load for load in self.loads if self._states[load.number].takes]
        if not offered:
            raise QueueFull("no replica takes requests: restore one that failed or was drained")
        index = self._policy(request, offered)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(offered):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"routing_policy chose {index!r} among {len(offered)} replicas: return an index of them")
        number = offered[index].number
        entry = self._in_flight[name] = _InFlight(request, number, self._weight(request))
        self._states[number].tokens += entry.tokens
        self._states[number].requests += 1
        return number

    def finished(self, request_id: str) -> None:
        """The request has ended, however it did. Raises ValueError if no replica has it."""
        entry = self._in_flight.pop(request_id, None)
        if entry is None:
            raise ValueError(f"request_id={request_id!r}: no replica has it, or it has ended before")
        state = self._states[entry.replica]
        state.tokens -= entry.tokens
        state.requests -= 1

    def fail(self, replica: int) -> list[Request]:
        """The replica is gone: it gets no more, and what it had is no longer in flight.

        Returns its unfinished requests in the order in which it got them: route each again, or report it as failed.
        """
        state = self._state(replica)
        lost = [entry.request for entry in self._in_flight.values() if entry.replica == replica]
        for request in lost:
            self.finished(request.request_id)
        if state.up:
            state.life += 1
        state.up = state.takes = False
        return lost

    def drain(self, replica: int) -> None:
        """The replica gets no more requests; what it has, it finishes."""
        self._state(replica).takes = False

    def restore(self, replica: int) -> None:
        """The replica takes requests, again or still."""
        state = self._state(replica)
        state.up = state.takes = True

    def check(self) -> None:
        """Assert that the loads are those of the requests in flight, and that whoever has one is up."""
        for number, state in enumerate(self._states):
            mine = [entry for entry in self._in_flight.values() if entry.replica == number]
            assert (state.requests, state.tokens) == (len(mine), sum(entry.tokens for entry in mine))
            assert state.up or not mine, "a replica that is down has requests"

    def _state(self, replica: int) -> _State:
        if not 0 <= replica < len(self._states):
            raise ValueError(f"replica={replica}: there are {len(self._states)}, numbered from 0")
        return self._states[replica]

    def _weight(self, request: Request) -> int:
        most, width = request.params.max_tokens, request.width
        output = self._expected if most is None else min(most, self._expected)
        return len(request.prompt_token_ids) + width * output
