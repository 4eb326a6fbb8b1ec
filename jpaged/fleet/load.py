"""How much a replica has to do.

Lives here: ReplicaLoad, least_loaded.
Promises: frozen numbers, in tokens.
Must not know: who keeps the count.
"""

from collections.abc import Sequence
from typing import NamedTuple


class ReplicaLoad(NamedTuple):
    """A replica's unfinished requests and the tokens they are expected to take; `life` counts how often it failed."""

    number: int
    tokens: int
    requests: int
    life: int = 0


def least_loaded(replicas: Sequence[ReplicaLoad]) -> int:
    """The index of the replica with the fewest tokens; among equals the one with fewer requests, then the first."""
    return min(range(len(replicas)), key=lambda i: (replicas[i].tokens, replicas[i].requests, i))
