"""The plan of a step while it is being made.

Lives here: PlanBuilder: collects rows, samples, grants and copies, and remembers whose they are.
Promises: `finish` freezes all of it; the budget never falls below zero.
Must not know: why a sequence is scheduled.
"""

from typing import Any, NamedTuple

from jpaged.core.requests.sequence import Sequence, SequenceGroup
from jpaged.core.scheduling.plan import (
    AdmittedSequence,
    PageCopy,
    PageGrant,
    PageSwap,
    Sample,
    ScheduledSequence,
    SchedulerOutput,
)

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
        self.copies: list[PageCopy] = []
        self.swapped_out: list[PageSwap] = []
        self.swapped_in: list[PageSwap] = []
        self.preempted: list[str] = []

    def admit(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Tell the executor who takes the sequence's lane, and which pages it has already."""
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
        pages = sequence.table.pages
        if column < len(pages):
            assert sequence.lane is not None
            self.grants.append(PageGrant(sequence.lane, column, tuple(pages[column:])))

    def compute(self, group: SequenceGroup, sequence: Sequence, end: int) -> int:
        """Add a row that computes the sequence's tokens up to `end`; returns the row's index."""
        slot = sequence.lane
        assert slot is not None
        start = sequence.num_computed
        self.budget -= end - start
        assert self.budget >= 0, "more tokens are scheduled than the step's budget"
        self.rows.append(ScheduledSequence(slot, start, end - start))
        self.row_targets.append(Target(group, sequence, slot))
        sequence.num_computed = end
        return len(self.rows) - 1

    def next_token(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Compute the sequence's newest token and draw the next: `compute` and `sample` in one, for decode steps."""
        slot, start, rows = sequence.lane, sequence.num_computed, self.rows
        assert slot is not None and self.budget > 0
        self.budget -= 1
        # `_new`: half the time of a call, and this is the line that every running sequence passes at every step.
        target = _new(Target, (group, sequence, slot))
        self.samples.append(_new(Sample, (len(rows), slot)))
        self.sample_targets.append(target)
        rows.append(_new(ScheduledSequence, (slot, start, 1)))
        self.row_targets.append(target)
        sequence.num_computed = start + 1

    def sample(self, row: int, group: SequenceGroup, sequence: Sequence) -> None:
        """Let `sequence` draw its next token from the last token of `row`."""
        target = self.row_targets[row]
        if target.sequence is not sequence:
            assert sequence.lane is not None
            target = Target(group, sequence, sequence.lane)
        self.samples.append(Sample(row, target.lane))
        self.sample_targets.append(target)

    def finish(self) -> SchedulerOutput:
        """The frozen plan."""
        return SchedulerOutput(
            step=self.step,
            rows=tuple(self.rows),
            samples=tuple(self.samples),
            admitted=tuple(self.admitted),
            grants=tuple(self.grants),
            copies=tuple(self.copies),
            swapped_out=tuple(self.swapped_out),
            swapped_in=tuple(self.swapped_in),
            preempted=tuple(self.preempted),
        )
