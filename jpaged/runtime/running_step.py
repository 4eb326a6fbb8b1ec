"""A step that the device has been given: what is fetched of it, and how that becomes a StepResult.

All that the host knew when the step was submitted is kept, since its lanes may change hands before the result is there;
log probabilities cross over only if somebody asked for them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from jpaged.core.plan import PromptLogprobs, SchedulerOutput, StepResult, TokenLogprobs
from jpaged.runtime.input_batch import InputBatch
from jpaged.runtime.sampling.sampler import LogprobTable, SampleOutputs


class PromptPart(NamedTuple):
    """Packed tokens of a step, from `first` on, whose successors' logprobs are asked for: `count` of them, with
    `num_top` likeliest ids each; the first successor stands at position `start` of the lane's sequence."""

    lane: int
    start: int
    first: int
    count: int
    num_top: int


@dataclass(frozen=True, slots=True)
class RunningStep:
    """The arrays that a submitted step will fill, how many logprobs each sample wants (-1: none), and which of the
    prompt's are wanted. `number` is what other processes know the step by."""

    sampled: SampleOutputs
    prompt: LogprobTable | None
    wanted: tuple[int, ...]
    prompt_parts: tuple[PromptPart, ...]
    number: int

    def result(self) -> StepResult:
        """Wait for the step; what the plan's samples gave."""
        token_ids: np.ndarray = jax.device_get(self.sampled.token_ids)
        return StepResult(tuple(token_ids[: len(self.wanted)].tolist()), self._logprobs(), self._prompt_logprobs())

    def _logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        if all(n < 0 for n in self.wanted):
            return None
        table = jax.device_get(self.sampled)
        return tuple(_token_logprobs(table, i, n) if n >= 0 else None for i, n in enumerate(self.wanted))

    def _prompt_logprobs(self) -> tuple[PromptLogprobs, ...]:
        if not self.prompt_parts:
            return ()
        table = jax.device_get(self.prompt)
        return tuple(
            PromptLogprobs(
                part.lane,
                part.start,
                tuple(_token_logprobs(table, part.first + i, part.num_top) for i in range(part.count)),
            )
            for part in self.prompt_parts
        )


def running_step(
    plan: SchedulerOutput, batch: InputBatch, sampled: SampleOutputs, prompt: LogprobTable | None, number: int
) -> RunningStep:
    """The step of `plan`, packed from `batch` as it is now. `prompt` is None where the shape has no targets."""
    wanted = tuple(batch.ints["num_logprobs"][[sample.lane for sample in plan.samples]].tolist())
    parts = () if prompt is None else tuple(_prompt_parts(plan, batch))
    return RunningStep(sampled, prompt, wanted, parts, number)


def _prompt_parts(plan: SchedulerOutput, batch: InputBatch) -> list[PromptPart]:
    parts: list[PromptPart] = []
    first = 0
    for row in plan.rows:
        num_top = int(batch.num_prompt_logprobs[row.lane])
        last = min(row.start + row.num_tokens, int(batch.ints["prompt_len"][row.lane]) - 1)
        if num_top >= 0 and last > row.start:
            parts.append(PromptPart(row.lane, row.start + 1, first, last - row.start, num_top))
        first += row.num_tokens
    return parts


def _token_logprobs(table: Any, i: int, count: int) -> TokenLogprobs:
    return TokenLogprobs(
        logprob=float(table.logprobs[i]),
        rank=int(table.ranks[i]),
        top_ids=tuple(table.top_ids[i, :count].tolist()),
        top_logprobs=tuple(table.top_logprobs[i, :count].tolist()),
    )
