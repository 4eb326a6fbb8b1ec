"""The progress of a request: its token streams, and what they share.

Lives here: Sequence, SequenceGroup, SequenceStatus.
Promises: `num_computed` tokens of a sequence have their KV in its pages once every plan handed out has run.
Must not know: who schedules, how pages are found.
"""

from enum import StrEnum
from typing import NamedTuple

from jpaged.core.cache.block_table import BlockTable
from jpaged.core.requests.beam import BeamState
from jpaged.core.requests.request import FinishReason, Request, RequestMetrics
from jpaged.core.scheduling.plan import TokenLogprobs


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


class Sequence:
    """One token stream: prompt and output ids, how many are computed, where they are.

    `lane` is its place in the executor's per-row state while it runs. `page_hashes` is the chain over its full
    pages as far as it was needed; `num_indexed` of its pages have been offered to the prefix cache. While it is
    swapped out, its KV is in `host_pages`. `needs_resend`: its ids or pages have changed in a way that the executor
    cannot know (a beam was replaced by a fork of another), so that it is to be told all of them again. `last_token` is when its newest
    output came. `deferred_finish`: it has ended for its user, why, and goes on as padding until its static batch ends.
    """

    __slots__ = (
        "deferred_finish",
        "finish_reason",
        "host_pages",
        "index",
        "lane",
        "last_token",
        "needs_resend",
        "num_computed",
        "num_indexed",
        "page_hashes",
        "prompt_len",
        "status",
        "stop_reason",
        "table",
        "token_ids",
    )

    def __init__(self, index: int, prompt_token_ids: tuple[int, ...], page_size: int) -> None:
        self.index = index
        self.prompt_len = len(prompt_token_ids)
        self.token_ids = list(prompt_token_ids)
        self.num_computed = 0
        self.table = BlockTable(page_size)
        self.host_pages: list[int] = []
        self.needs_resend = False
        self.lane: int | None = None
        self.status = SequenceStatus.WAITING
        self.page_hashes: list[bytes] = []
        self.num_indexed = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.last_token: float | None = None
        self.deferred_finish: tuple[FinishReason, int | str | None] | None = None

    @property
    def num_outputs(self) -> int:
        """Generated tokens so far."""
        return len(self.token_ids) - self.prompt_len

    @property
    def finished(self) -> bool:
        """Whether it will get no more tokens."""
        return self.status is SequenceStatus.FINISHED


class SequenceGroup:
    """The `n` sequences of one request: the prompt is computed once, by the first live one, then all share it.

    While `forked` is False only the parent has pages, and it computes prompt tokens alone. Siblings run, are
    preempted and are reported together. `order` is the rank by arrival, unique in an engine; a sequence ends at
    `max_len` tokens, prompt included. `beam` is the state of a beam search, whose beams the sequences are.
    `width` sequences run together, the others wait for all of these to end: the pool may be too small for all at once.
    `times_skipped` counts the later groups that were admitted before it. `prompt_logprobs[i]` is of the prompt token at
    position i + 1. `batch` is the static batch that it runs in, if batches are static.
    """

    __slots__ = (
        "active",
        "batch",
        "beam",
        "forked",
        "max_len",
        "metrics",
        "order",
        "prompt_logprobs",
        "request",
        "sequences",
        "status",
        "stop_ids",
        "times_skipped",
        "width",
    )

    def __init__(self, request: Request, order: int, page_size: int, max_len: int, width: int) -> None:
        self.request = request
        self.order = order
        self.max_len = max_len
        self.sequences = [Sequence(i, request.prompt_token_ids, page_size) for i in range(request.width)]
        self.width = width
        self.start_next_wave()
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.metrics = RequestMetrics(arrival=request.arrival)
        eos = () if request.params.ignore_eos else request.eos_token_ids
        self.stop_ids = frozenset(eos) | frozenset(request.params.stop_token_ids or ())
        self.times_skipped = 0
        self.batch: StaticBatch | None = None
        self.beam: BeamState | None = None
        if request.beam is not None:
            max_outputs = max_len - len(request.prompt_token_ids)
            self.beam = BeamState(request.beam, max_outputs, self.stop_ids)

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

    def start_next_wave(self) -> None:
        """Let the next sequences wait for their turn, which begins with the prompt."""
        self.active = self.unfinished[: self.width]
        self.forked = len(self.active) == 1
        self.status = SequenceStatus.WAITING
