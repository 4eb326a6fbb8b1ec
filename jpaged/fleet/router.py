"""Which replica gets a request.

Lives here: Router, with its own table of what each replica still has to do, and ROUTING, the policies by name.
Promises: every request is with exactly one replica that is up, or with none; load is read from the table, never asked
for; the same calls make the same choices. Standard library only.
Must not know: engines, clocks, who carries requests to replicas.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from jpaged.config.declaration import require_int
from jpaged.core.requests.request import Request
from jpaged.core.scheduling.policy import load_policy
from jpaged.fleet.affinity import PrefixAffinity
from jpaged.fleet.load import ReplicaLoad, least_loaded


class RoutingPolicy(Protocol):
    """Chooses a replica for a request."""

    def __call__(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        """The index in `replicas` (those that take requests, never empty, by number) of the one that gets it."""
        ...


class RoundRobin:
    """Each replica in turn; one that is down is passed over."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        """The first replica after the one that was chosen last."""
        index = next((i for i, replica in enumerate(replicas) if replica.number > self._last), 0)
        self._last = replicas[index].number
        return index


def least_outstanding_tokens(request: Request, replicas: Sequence[ReplicaLoad]) -> int:
    """The replica with the fewest tokens still to do; among equals the lowest number."""
    return least_loaded(replicas)


ROUTING: dict[str, Callable[[int], RoutingPolicy]] = {
    "round_robin": lambda page_size: RoundRobin(),
    "least_outstanding_tokens": lambda page_size: least_outstanding_tokens,
    "prefix_affinity": lambda page_size: PrefixAffinity(page_size),
}
"""The policies by name: made anew for each router, for engines with pages of so many tokens."""


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

        Raises ValueError if one has it already, if the policy chooses none of those that it was offered, or if no
        replica takes requests.
        """
        name = request.request_id
        if name in self._in_flight:
            raise ValueError(f"request_id={name!r}: replica {self._in_flight[name].replica} has it already")
        offered = [load for load in self.loads if self._states[load.number].takes]
        if not offered:
            raise ValueError("no replica takes requests: restore one that failed or was drained")
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
