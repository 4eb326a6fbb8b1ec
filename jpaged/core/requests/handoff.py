"""A request on its way from one engine to another, with its KV. The receiver goes on where the sender stopped."""

from collections import abc
from dataclasses import dataclass
from typing import NamedTuple

from jpaged.core.requests.request import Request, RequestMetrics
from jpaged.core.requests.sequence import Sequence, SequenceGroup, SequenceStatus


class HandedSequence(NamedTuple):
    """One sequence of a handoff: its ids, how many have their KV in `pages` (of the sender's pool), its last token."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    token_ids: tuple[int, ...]
    num_computed: int
    pages: tuple[int, ...]
    last_token: float | None


@dataclass(frozen=True, slots=True)
class KVHandoff:
    """What a receiver must know of a request: its live sequences, and its times so far, which the receiver goes on
    to keep (so both engines must have clocks that agree)."""

    request: Request
    page_size: int
    sequences: tuple[HandedSequence, ...]
    metrics: RequestMetrics

    @property
    def pages(self) -> tuple[int, ...]:
        """The sender's pages, each once, in the order of first use."""
        return tuple(dict.fromkeys(page for sequence in self.sequences for page in sequence.pages))


def handoff_of(group: SequenceGroup, page_size: int) -> KVHandoff:
    """The handoff of a group. Raises ValueError if it cannot leave now, or can never."""
    name, live = group.request.request_id, group.live
    if group.beam is not None or group.batch is not None:
        raise ValueError(f"request {name!r}: beam searches and static batches stay with the engine they began on")
    if len(group.unfinished) > len(live):
        raise ValueError(f"request {name!r}: some of its sequences wait for their turn; give it a pool for all at once")
    sampled = group.status is SequenceStatus.RUNNING and all(
        s.num_outputs and s.num_computed + 1 == len(s.token_ids) for s in live
    )
    if not sampled:
        raise ValueError(f"request {name!r} has not got its newest tokens: hand it over after a step that gave it some")
    handed = tuple(
        HandedSequence(s.index, tuple(s.token_ids), s.num_computed, tuple(s.pages), s.last_token) for s in live
    )
    return KVHandoff(group.request, page_size, handed, group.metrics)


def restore_group(group: SequenceGroup, handoff: KVHandoff) -> abc.Sequence[Sequence]:
    """Let a new group stand where the handoff says, without pages; returns its live sequences, in the handoff's order.

    Sequences that the handoff lacks have ended before.
    """
    handed = {sequence.index: sequence for sequence in handoff.sequences}
    for sequence in group.sequences:
        if sequence.index not in handed:
            sequence.status = SequenceStatus.FINISHED
            continue
        facts = handed[sequence.index]
        sequence.become(facts.token_ids)
        sequence.restart(facts.num_computed)
        sequence.last_token = facts.last_token
    group.active = group.unfinished
    group.forked = True
    group.metrics = handoff.metrics
    return group.live
