"""The progress of a request: its token streams, and what they share."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from jpaged.core.plan import TokenLogprobs
from jpaged.core.requests.beam import BeamState
from jpaged.core.requests.request import FinishReason, Request, RequestMetrics


class SequenceStatus(StrEnum):
    """Where a sequence, or a group as a whole, stands."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    ARRIVING = "arriving"
    FINISHED = "finished"


class StaticBatch(NamedTuple):
    """What the groups of a static batch are padded to: the longest prompt and the longest output, in tokens."""

    prompt_len: int
    num_outputs: int


@dataclass(slots=True, eq=False)
class Sequence:
    """One token stream of a request.

        0 <= indexed <= computed <= known + pending <= max_len, in tokens

        indexed   in full pages that the prefix cache has been offered: `num_indexed` pages
        computed  their KV is in `pages` once every plan handed out has run
        known     the host has their ids, prompt and outputs: `token_ids`
        pending   plans in flight are sampling their ids, and later plans count on it

    (A static batch pads a sequence to its own end, which may be beyond max_len.) These four are changed by the methods
    below alone, `pages`, `host_pages` (where its KV is while it is swapped out) and `page_hashes` (the chain over its
    full pages, as far as it was needed) by the cache alone; a test sees to both.

    `lane` is its index in the executor's batch while it runs. `needs_resend`: its ids or pages have changed in a way
    that the executor cannot know (a beam was replaced by a fork of another), so it is to be told all of them again.
    `last_token` is when its newest output came. `deferred_finish`: it has ended for its user, why, and goes on as
    padding until its static batch ends.
    """

    index: int
    prompt_len: int
    token_ids: list[int]
    num_computed: int = 0
    num_indexed: int = 0
    num_pending: int = 0
    pages: list[int] = field(default_factory=list[int])
    host_pages: list[int] = field(default_factory=list[int])
    page_hashes: list[bytes] = field(default_factory=list[bytes])
    needs_resend: bool = False
    lane: int | None = None
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    last_token: float | None = None
    deferred_finish: tuple[FinishReason, int | str | None] | None = None

    @property
    def num_tokens(self) -> int:
        """Its length as scheduling sees it: known tokens, and those that are being sampled."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_outputs(self) -> int:
        """Generated tokens that are known."""
        return len(self.token_ids) - self.prompt_len

    @property
    def finished(self) -> bool:
        """Whether it will get no more tokens."""
        return self.status is SequenceStatus.FINISHED

    def append(self, token_id: int) -> None:
        """Its next id is known, which may have been pending."""
        self.token_ids.append(token_id)
        if self.num_pending:
            self.num_pending -= 1

    def compute_and_append(self, token_ids: list[int]) -> None:
        """These are its next ids; each but the last has been computed, and the one before them."""
        self.token_ids.extend(token_ids)
        self.num_computed += len(token_ids)

    def expect(self) -> None:
        """Count on the id that a plan in flight is sampling."""
        self.num_pending += 1

    def compute_to(self, end: int) -> None:
        """A plan computes its tokens up to position `end`."""
        self.num_computed = end

    def index_to(self, num_pages: int) -> None:
        """The prefix cache has been offered its first `num_pages` pages."""
        self.num_indexed = num_pages

    def restart(self, num_computed: int = 0, num_indexed: int = 0) -> None:
        """Its pages hold the KV of its first `num_computed` tokens alone: none once they were given back."""
        self.num_computed, self.num_indexed, self.num_pending = num_computed, num_indexed, 0

    def fork_from(self, parent: "Sequence", page_size: int) -> None:
        """It has been computed as far as its parent, whose pages it has or copies."""
        self.restart(parent.num_computed, parent.num_indexed)
        # The parent's chain may go on over outputs of its own, which it had before a preemption.
        self.page_hashes = parent.page_hashes[: parent.num_computed // page_size]

    def become(self, token_ids: Iterable[int]) -> None:
        """It is given up for another stream with these ids."""
        self.token_ids = list(token_ids)


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The `n` sequences of one request: the prompt is computed once, by the first live one, then all share it.

    While `forked` is False only the parent has pages, and it computes prompt tokens alone. Siblings run, are
    preempted and are reported together. `order` is the rank by arrival, unique in an engine; a sequence ends at
    `max_len` tokens, prompt included. `beam` is the state of a beam search, whose beams the sequences are.
    `width` sequences run together, the others wait for all of these to end: the pool may be too small for all at once.
    `times_skipped` counts the later groups that were admitted before it. `prompt_logprobs[i]` is of the prompt token at
    position i + 1. `batch` is the static batch that it runs in, if batches are static.
    """

    request: Request
    order: int
    max_len: int
    width: int
    times_skipped: int = 0
    batch: StaticBatch | None = None
    beam: BeamState | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    sequences: list[Sequence] = field(init=False)
    active: list[Sequence] = field(init=False)
    forked: bool = field(init=False)
    status: SequenceStatus = field(init=False)
    metrics: RequestMetrics = field(init=False)
    stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        request, prompt = self.request, self.request.prompt_token_ids
        self.sequences = [Sequence(i, len(prompt), list(prompt)) for i in range(request.width)]
        self.start_next_wave()
        self.metrics = RequestMetrics(arrival=request.arrival)
        eos = () if request.params.ignore_eos else request.eos_token_ids
        self.stop_ids = frozenset(eos) | frozenset(request.params.stop_token_ids or ())
        if request.beam is not None:
            self.beam = BeamState(request.beam, self.max_len - len(prompt), self.stop_ids)

    @property
    def live(self) -> list[Sequence]:
        """The sequences that run together now and have not finished."""
        if len(self.active) == 1:
            return [] if self.active[0].finished else self.active
        return [sequence for sequence in self.active if not sequence.finished]

    @property
    def unfinished(self) -> list[Sequence]:
        """All its sequences that have not finished, also those whose turn has not come."""
        return [sequence for sequence in self.sequences if not sequence.finished]

    @property
    def finished(self) -> bool:
        """Whether all its sequences have finished."""
        return not self.live and not self.unfinished

    @property
    def first_end(self) -> int:
        """How far its parent computes before anybody samples: of a group that is to fork, the prompt alone."""
        parent = self.live[0]
        return len(parent.token_ids) if self.forked else parent.prompt_len

    def start_next_wave(self) -> None:
        """Let the next sequences wait for their turn, which begins with the prompt."""
        self.active = self.unfinished[: self.width]
        self.forked = len(self.active) == 1
        self.status = SequenceStatus.WAITING
