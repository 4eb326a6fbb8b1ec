"""The plan of a step as plain values, and back.

Lives here: to_message, from_message.
Promises: what comes back equals what was sent; of sampling parameters only those that are set are sent.
Must not know: connections, executors.
"""

from dataclasses import fields
from typing import Any

from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.core.scheduling.plan import (
    AdmittedSequence,
    MoveKind,
    PageGrant,
    PageMove,
    Sample,
    ScheduledSequence,
    SchedulerOutput,
)

_DEFAULTS = SamplingParams()
# What an executor needs no word of: how the host ends a sequence, and its text.
_PARAMS = tuple(field.name for field in fields(SamplingParams))


def to_message(plan: SchedulerOutput) -> list[Any]:
    """A plan as nested lists of numbers, texts and None."""
    return [
        plan.step,
        plan.rows,
        plan.samples,
        [_admitted_to(sequence) for sequence in plan.admitted],
        plan.grants,
        plan.moves,
        plan.preempted,
    ]


def from_message(message: list[Any]) -> SchedulerOutput:
    """The plan that `to_message` was given."""
    step, rows, samples, admitted, grants, moves, preempted = message
    return SchedulerOutput(
        step=step,
        rows=tuple(ScheduledSequence(*row) for row in rows),
        samples=tuple(Sample(*sample) for sample in samples),
        admitted=tuple(_admitted_from(sequence) for sequence in admitted),
        grants=tuple(PageGrant(slot, column, tuple(pages)) for slot, column, pages in grants),
        moves=tuple(PageMove(MoveKind(kind), source, target) for kind, source, target in moves),
        preempted=tuple(preempted),
    )


def _admitted_to(sequence: AdmittedSequence) -> list[Any]:
    return [
        sequence.lane,
        sequence.request_id,
        sequence.index,
        sequence.token_ids,
        sequence.prompt_len,
        _params_to(sequence.params),
        sequence.seed,
        sequence.stop_ids,
    ]


def _admitted_from(message: list[Any]) -> AdmittedSequence:
    lane, request_id, index, token_ids, prompt_len, params, seed, stop_ids = message
    return AdmittedSequence(
        lane, request_id, index, tuple(token_ids), prompt_len, SamplingParams(**params), seed, tuple(stop_ids)
    )


def _params_to(params: SamplingParams) -> dict[str, Any]:
    values = {name: getattr(params, name) for name in _PARAMS}
    changed = {name: value for name, value in values.items() if value != getattr(_DEFAULTS, name)}
    if params.logit_bias is not None:
        changed["logit_bias"] = dict(params.logit_bias)
    return changed
