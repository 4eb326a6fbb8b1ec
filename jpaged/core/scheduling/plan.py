"""What the scheduler says to an executor, and what comes back.

Lives here: SchedulerOutput and its parts, StepResult and its parts, SequenceDelta.
Promises: frozen snapshots of plain numbers; nothing in a plan changes after it was handed out.
Must not know: live sequences, arrays.
"""

from dataclasses import dataclass
from typing import NamedTuple

from jpaged.core.requests.request import FinishReason
from jpaged.core.requests.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class AdmittedSequence:
    """A sequence takes a lane: all that an executor must keep of it until the slot is given to another.

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


class PageCopy(NamedTuple):
    """Copy a page, every layer of it, before this step writes."""

    source: int
    target: int


class PageSwap(NamedTuple):
    """Move a page's contents between a page of the device's pool and one of the host's."""

    device: int
    host: int


class ScheduledSequence(NamedTuple):
    """This step computes the tokens [start, start + num_tokens) of the sequence in `lane`."""

    lane: int
    start: int
    num_tokens: int


class Sample(NamedTuple):
    """Draw a token for `lane` from the last token that `rows[row]` computes in this step."""

    row: int
    lane: int


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step; `samples` may name a row several times (a fork).

    An executor first swaps out, then swaps in, then copies pages, then computes: a page that leaves may be given to
    another in the same plan.
    """

    step: int
    rows: tuple[ScheduledSequence, ...] = ()
    samples: tuple[Sample, ...] = ()
    admitted: tuple[AdmittedSequence, ...] = ()
    grants: tuple[PageGrant, ...] = ()
    copies: tuple[PageCopy, ...] = ()
    swapped_out: tuple[PageSwap, ...] = ()
    swapped_in: tuple[PageSwap, ...] = ()
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
