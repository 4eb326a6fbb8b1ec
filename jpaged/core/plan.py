"""What the scheduler says to an executor, and what comes back.

All are frozen snapshots of plain numbers: nothing in a plan changes after it was handed out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from jpaged.core.requests.request import FinishReason
from jpaged.core.requests.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class AdmittedSequence:
    """A sequence gets a lane: all that an executor must keep of it until the lane is given to another.

    `token_ids` are all ids known now, prompt and, after a preemption, outputs. Later ids are those that the
    executor samples itself in this lane.
    """

    lane: int
    request_id: str
    index: int
    token_ids: tuple[int, ...]
    prompt_len: int
    params: SamplingParams
    seed: int
    stop_ids: tuple[int, ...]


class PageGrant(NamedTuple):
    """The block table of a lane holds `pages` from its column `column` on."""

    lane: int
    column: int
    pages: tuple[int, ...]


class MoveKind(IntEnum):
    """From which pool to which a page moves. The moves of a plan are made in this order.

    A page that goes out may come in again as another's, and be the target of a copy. RECEIVE is no part of a plan:
    another engine's pool is the source, and the receiver holds back what depends on it.
    """

    SWAP_OUT = 0
    SWAP_IN = 1
    COPY = 2
    RECEIVE = 3


class PageMove(NamedTuple):
    """Copy page `source` of one pool, every layer of it, to page `target` of another, or of the same."""

    kind: MoveKind
    source: int
    target: int


def moves_of(moves: Iterable[PageMove], kind: MoveKind) -> tuple[PageMove, ...]:
    """The moves of one kind."""
    return tuple(move for move in moves if move.kind is kind)


class ScheduledSequence(NamedTuple):
    """This step computes the tokens [start, start + num_tokens) of the sequence in `lane`."""

    lane: int
    start: int
    num_tokens: int


class Sample(NamedTuple):
    """Sample a token for `lane` from the last token that `rows[row]` computes in this step."""

    row: int
    lane: int


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step; `samples` may name a row several times (a fork).

    An executor makes the `moves` in their order, that of MoveKind, and then computes.
    """

    step: int
    rows: tuple[ScheduledSequence, ...] = ()
    samples: tuple[Sample, ...] = ()
    admitted: tuple[AdmittedSequence, ...] = ()
    grants: tuple[PageGrant, ...] = ()
    moves: tuple[PageMove, ...] = ()
    preempted: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(row.num_tokens for row in self.rows)


class TokenLogprobs(NamedTuple):
    """The log probability and rank (1 is the most likely) of one token, and the most likely ids beside it."""

    logprob: float
    rank: int
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class PromptLogprobs(NamedTuple):
    """Logprobs of the prompt tokens at positions start, start + 1, ... of the sequence in `lane`."""

    lane: int
    start: int
    entries: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: one id for each of the plan's `samples`, and the logprobs that were asked for."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()


class Hypothesis(NamedTuple):
    """A finished beam: its generated ids, their summed log probability, and that over length ** length_penalty."""

    score: float
    token_ids: tuple[int, ...]
    cumulative_logprob: float
    finish_reason: FinishReason


class SequenceDelta(NamedTuple):
    """One token more of a sequence, or its end; `prompt_logprobs` come once, with the group's first token."""

    request_id: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    hypothesis: Hypothesis | None = None
