"""A name for the decisions of a run: two runs that decided alike have equal digests.

Lives here: PlanDigest.
Promises: it takes in every decision of every plan; a step that only goes on as the one before adds to a count, so
several such steps can be taken in at once.
Must not know: executors, times.
"""

import hashlib
from collections.abc import Iterable

from jpaged.core.output import PageGrant, SchedulerOutput


class PlanDigest:
    """A rolling SHA-256 over plans.

    Of a plan it takes in what does not follow from the plans before it: who came and went, prompt chunks, pages
    granted, copied and swapped, preemptions, and samples that are not simply one a row.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._hash = hashlib.sha256()
        self._slots: tuple[int, ...] = ()

    def add(self, plan: SchedulerOutput) -> None:
        """Take in the next plan."""
        slots = tuple(row.row_slot for row in plan.rows)
        facts: dict[str, object] = {}
        if slots != self._slots:
            facts["slots"] = self._slots = slots
        newcomers = {admitted.row_slot for admitted in plan.admitted}
        chunks = [row for row in plan.rows if row.num_tokens != 1 or row.row_slot in newcomers]
        if chunks:
            facts["chunks"] = [tuple(row) for row in chunks]
        if [sample.row for sample in plan.samples] != list(range(len(slots))):
            facts["samples"] = [tuple(sample) for sample in plan.samples]
        if plan.admitted:
            facts["admitted"] = [(a.row_slot, a.request_id, a.index, len(a.token_ids)) for a in plan.admitted]
        for name in ("copies", "swapped_out", "swapped_in"):
            if pairs := getattr(plan, name):
                facts[name] = [tuple(pair) for pair in pairs]
        if plan.preempted:
            facts["preempted"] = plan.preempted
        self._take(plan.step, plan.grants, facts)

    def add_decode_step(self, step: int, slots: tuple[int, ...], grants: Iterable[PageGrant]) -> None:
        """Take in a plan in which these row slots each decode a token, pages are granted, and nothing else happens."""
        facts: dict[str, object] = {}
        if slots != self._slots:
            facts["slots"] = self._slots = slots
        self._take(step, grants, facts)

    def hexdigest(self) -> str:
        """The digest of all plans so far."""
        whole = self._hash.copy()
        whole.update(f"{self.num_steps} steps".encode())
        return whole.hexdigest()[:16]

    def _take(self, step: int, grants: Iterable[PageGrant], facts: dict[str, object]) -> None:
        self.num_steps += 1
        granted = [tuple(grant) for grant in grants]
        if granted:
            facts["grants"] = granted
        if facts:
            self._hash.update(repr((step, sorted(facts.items()))).encode())
