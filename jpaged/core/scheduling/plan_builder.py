"""The plan of a step while it is being made, with whose its rows and samples are. The budget never falls below zero."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from jpaged.core.plan import (
    AdmittedSequence,
    PageGrant,
    PageMove,
    Sample,
    ScheduledSequence,
    SchedulerOutput,
)
from jpaged.core.requests.sequence import Sequence, SequenceGroup

_new: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


class Target(NamedTuple):
    """The live sequence behind a row or a sample of a plan, and the lane it had then."""

    group: SequenceGroup
    sequence: Sequence
    lane: int


class PlanBuilder:
    """One step's plan in the making, with `budget` tokens left to give."""

    def __init__(self, step: int, budget: int) -> None:
        self.step = step
        self.budget = budget
        self.rows: list[ScheduledSequence] = []
        self.row_targets: list[Target] = []
        self.samples: list[Sample] = []
        self.sample_targets: list[Target] = []
        self.admitted: list[AdmittedSequence] = []
        self.grants: list[PageGrant] = []
        self.preempted: list[str] = []

    def admit(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Tell the executor which sequence has its lane now, and which pages it has already."""
        assert sequence.lane is not None
        request = group.request
        self.admitted.append(
            AdmittedSequence(
                lane=sequence.lane,
                request_id=request.request_id,
                index=sequence.index,
                token_ids=tuple(sequence.token_ids),
                prompt_len=sequence.prompt_len,
                params=request.params,
                seed=request.seed,
                stop_ids=tuple(sorted(group.stop_ids)),
            )
        )
        self.grant(sequence, 0)

    def grant(self, sequence: Sequence, column: int) -> None:
        """Tell the executor the pages of the sequence's block table from `column` on, if there are any."""
        pages = sequence.pages
        if column < len(pages):
            assert sequence.lane is not None
            self.grants.append(PageGrant(sequence.lane, column, tuple(pages[column:])))

    def compute(self, group: SequenceGroup, sequence: Sequence, end: int) -> int:
        """Add a row that computes the sequence's tokens up to `end`; returns the row's index."""
        lane = sequence.lane
        assert lane is not None
        start = sequence.num_computed
        self.budget -= end - start
        assert self.budget >= 0, "more tokens are scheduled than the step's budget"
        self.rows.append(ScheduledSequence(lane, start, end - start))
        self.row_targets.append(Target(group, sequence, lane))
        sequence.compute_to(end)
        return len(self.rows) - 1

    def next_token(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Compute the sequence's newest token and sample the next: `compute` and `sample` in one, for decode steps."""
        lane, start, rows = sequence.lane, sequence.num_computed, self.rows
        assert lane is not None and self.budget > 0
        self.budget -= 1
        # `_new`: half the time of a call, and this is the line that every running sequence passes at every step.
        target = _new(Target, (group, sequence, lane))
        self.samples.append(_new(Sample, (len(rows), lane)))
        self.sample_targets.append(target)
        rows.append(_new(ScheduledSequence, (lane, start, 1)))
        self.row_targets.append(target)
        sequence.compute_to(start + 1)

    def sample(self, row: int, group: SequenceGroup, sequence: Sequence) -> None:
        """Sample the next token of `sequence` from the last token of `row`."""
        target = self.row_targets[row]
        if target.sequence is not sequence:
            assert sequence.lane is not None
            target = Target(group, sequence, sequence.lane)
        self.samples.append(Sample(row, target.lane))
        self.sample_targets.append(target)

    def finish(self, moves: Iterable[PageMove]) -> SchedulerOutput:
        """The frozen plan, which first makes these moves."""
        return SchedulerOutput(
            step=self.step,
            rows=tuple(self.rows),
            samples=tuple(self.samples),
            admitted=tuple(self.admitted),
            grants=tuple(self.grants),
            moves=tuple(sorted(moves, key=lambda move: move.kind)),
            preempted=tuple(self.preempted),
        )
