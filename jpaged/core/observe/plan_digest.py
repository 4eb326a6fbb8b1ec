"""A name for the decisions of a run: two runs that decided alike have equal digests.

Every decision of every plan is in it; a step that only goes on as the one before adds to a count.

The encoding, version 1: SHA-256 over the UTF-8 bytes of repr((step, facts)) of each plan that has facts, then of
"N steps"; the first 16 hexadecimal digits. `facts` are (key, value) pairs, sorted by key, of those that are not empty:

    "admitted"     [(lane, request id, index, number of token ids), ...]
    "chunks"       [(lane, start, number of tokens), ...] but for one token of a sequence that was there before
    "copies"       [(source page, target page), ...]
    "grants"       [(lane, column, (page, ...)), ...]
    "preempted"    (request id, ...)
    "samples"      [(row, lane), ...] unless each row is sampled once, in order
    "slots"        (lane, ...) of the rows, where they are not those of the step before
    "swapped_in"   [(device page, host page), ...]
    "swapped_out"  likewise

A lane is a sequence's index in the executor's batch, a row its index in the step's; "slots" is a name of old. All are
plain tuples, integers and strings: no name of a record or a field gets into the bytes, so renaming one changes no
digest.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

from jpaged.core.plan import MoveKind, PageGrant, SchedulerOutput

ENCODING_VERSION = 1
_MOVES = {MoveKind.SWAP_OUT: "swapped_out", MoveKind.SWAP_IN: "swapped_in", MoveKind.COPY: "copies"}


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
        slots = tuple(row.lane for row in plan.rows)
        facts: dict[str, Any] = {}
        if slots != self._slots:
            facts["slots"] = self._slots = slots
        newcomers = {admitted.lane for admitted in plan.admitted}
        chunks = [row for row in plan.rows if row.num_tokens != 1 or row.lane in newcomers]
        if chunks:
            facts["chunks"] = [(row.lane, row.start, row.num_tokens) for row in chunks]
        if [sample.row for sample in plan.samples] != list(range(len(slots))):
            facts["samples"] = [(sample.row, sample.lane) for sample in plan.samples]
        if plan.admitted:
            facts["admitted"] = [(a.lane, a.request_id, a.index, len(a.token_ids)) for a in plan.admitted]
        for kind, source, target in plan.moves:
            # Of a swap the device's page comes first, in both directions.
            pages = (target, source) if kind is MoveKind.SWAP_IN else (source, target)
            facts.setdefault(_MOVES[kind], []).append(pages)
        if plan.preempted:
            facts["preempted"] = tuple(plan.preempted)
        self._add(plan.step, plan.grants, facts)

    def add_decode_step(self, step: int, slots: tuple[int, ...], grants: Iterable[PageGrant]) -> None:
        """Take in a plan in which these lanes each decode a token, pages are granted, and nothing else happens."""
        facts: dict[str, object] = {}
        if slots != self._slots:
            facts["slots"] = self._slots = slots
        self._add(step, grants, facts)

    def hexdigest(self) -> str:
        """The digest of all plans so far."""
        whole = self._hash.copy()
        whole.update(f"{self.num_steps} steps".encode())
        return whole.hexdigest()[:16]

    def _add(self, step: int, grants: Iterable[PageGrant], facts: dict[str, object]) -> None:
        self.num_steps += 1
        granted = [(grant.lane, grant.column, tuple(grant.pages)) for grant in grants]
        if granted:
            facts["grants"] = granted
        if facts:
            self._hash.update(repr((step, sorted(facts.items()))).encode())
