"""A device made of a dictionary, and the cache-free oracle that says what it should have answered.

Lives here: OracleExecutor, and `oracle`, which computes the same answers from scratch (beams: beam_oracle.py).
Promises: every id depends on the whole history as read through the block table, so that a wrong page, a missing copy,
a page reused too early or a stale prefix hit changes what is sampled; forbidden writes raise at once.
Must not know: schedulers, live sequences. All it has is the plan.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jpaged.core.executor import SyncExecutor
from jpaged.core.plan import (
    AdmittedSequence,
    MoveKind,
    PageMove,
    PromptLogprobs,
    SchedulerOutput,
    StepResult,
    TokenLogprobs,
    moves_of,
)
from jpaged.core.requests.request import FinishReason, Request
from jpaged.core.requests.sampling_params import SamplingParams

# hash() of a tuple of integers is the same in every process.


class Cell(NamedTuple):
    """What a slot holds: a token, its position, and a number that depends on all tokens up to it, as real KV does."""

    token_id: int
    position: int
    chain: int


GARBAGE = Cell(-1, -1, 0)


@dataclass(slots=True)
class Row:
    """The executor's mirror of a lane."""

    admitted: AdmittedSequence
    token_ids: list[int]
    pages: list[int] = field(default_factory=list)


class OracleExecutor(SyncExecutor):
    """Runs plans over `num_pages` pages of `page_size` slots; `before_execute` sees each plan first."""

    def __init__(self, num_pages: int, page_size: int, vocab_size: int = 16, num_host_pages: int = 0) -> None:
        self.num_pages = num_pages
        self.num_host_pages = num_host_pages
        self.page_size = page_size
        self.vocab_size = vocab_size
        self.memory: dict[int, Cell] = {}
        self.host_memory: dict[int, list[Cell]] = {}
        self.rows: dict[int, Row] = {}
        self.plans: list[SchedulerOutput] = []
        self.before_execute: Callable[[SchedulerOutput], None] | None = None

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """What the plan's samples gave."""
        if self.before_execute is not None:
            self.before_execute(plan)
        self.plans.append(plan)
        for admitted in plan.admitted:
            self.rows[admitted.lane] = Row(admitted, list(admitted.token_ids))
        for slot, column, pages in plan.grants:
            table = self.rows[slot].pages
            assert column <= len(table), "a grant leaves a hole in the block table"
            table[column:] = pages
            self._check_pages(table)
        assert [move.kind for move in plan.moves] == sorted(move.kind for move in plan.moves), "moves out of order"
        self._swap_out(moves_of(plan.moves, MoveKind.SWAP_OUT))
        self._swap_in(moves_of(plan.moves, MoveKind.SWAP_IN))
        self._copy(moves_of(plan.moves, MoveKind.COPY))
        self._write(plan)
        return self._answer(plan)

    def _check_pages(self, pages: Iterable[int]) -> None:
        assert all(1 <= page <= self.num_pages for page in pages), "a page id is outside of the pool"

    def page(self, page: int) -> list[Cell]:
        """What the slots of a page hold."""
        return [self.memory.get(page * self.page_size + offset, GARBAGE) for offset in range(self.page_size)]

    def _fill(self, page: int, cells: Iterable[Cell]) -> None:
        self.memory.update((page * self.page_size + offset, cell) for offset, cell in enumerate(cells))

    def _swap_out(self, swaps: Sequence[PageMove]) -> None:
        # Two groups that share a page and leave in one step take a copy of it each.
        self._check_swaps(swaps, [swap.source for swap in swaps], [swap.target for swap in swaps])
        for _, device, host in swaps:
            self.host_memory[host] = self.page(device)

    def _swap_in(self, swaps: Sequence[PageMove]) -> None:
        self._check_swaps(swaps, [swap.target for swap in swaps], [swap.source for swap in swaps])
        for _, host, device in swaps:
            self._fill(device, self.host_memory.pop(host))

    def _check_swaps(self, swaps: Sequence[PageMove], devices: list[int], hosts: list[int]) -> None:
        self._check_pages(devices)
        assert all(1 <= host <= self.num_host_pages for host in hosts), "a host page is outside of the host pool"
        assert len({swap.target for swap in swaps}) == len(swaps), "two pages are swapped into one"

    def _copy(self, copies: Sequence[PageMove]) -> None:
        targets = [copy.target for copy in copies]
        self._check_pages([*targets, *(copy.source for copy in copies)])
        assert len(set(targets)) == len(targets), "two copies have one target"
        assert not set(targets) & {copy.source for copy in copies}, "a copied page is another pair's source"
        for _, source, target in copies:
            self._fill(target, self.page(source))

    def _write(self, plan: SchedulerOutput) -> None:
        written: set[int] = set()
        held_by = [set(self.rows[row.lane].pages) for row in plan.rows]
        for i, (slot, start, num_tokens) in enumerate(plan.rows):
            row = self.rows[slot]
            assert num_tokens > 0, "a row computes nothing"
            assert start + num_tokens <= len(row.token_ids), "a row computes a token that nobody knows"
            for position in range(start, start + num_tokens):
                index = position // self.page_size
                assert index < len(row.pages), f"no page was granted for position {position}"
                page, target = row.pages[index], self._slot(row, position)
                assert target not in written, "two rows write one slot"
                assert not any(page in held for j, held in enumerate(held_by) if j != i), "a shared page is written"
                written.add(target)
                before = self._read(row, position - 1).chain if position else 0
                self.memory[target] = next_cell(row.token_ids[position], position, before)

    def _slot(self, row: Row, position: int) -> int:
        return row.pages[position // self.page_size] * self.page_size + position % self.page_size

    def _read(self, row: Row, position: int) -> Cell:
        return self.memory.get(self._slot(row, position), GARBAGE)

    def _history(self, row: Row, end: int) -> list[Cell]:
        return [self._read(row, position) for position in range(end)]

    def _answer(self, plan: SchedulerOutput) -> StepResult:
        token_ids: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        for row_index, slot in plan.samples:
            computed = plan.rows[row_index]
            end = computed.start + computed.num_tokens
            target = self.rows[slot]
            assert end == len(target.token_ids), "a sample is drawn in the middle of what is known"
            history = self._history(self.rows[computed.lane], end)
            asked = target.admitted
            token = draw(
                history, asked.params, asked.seed, asked.index, asked.prompt_len, asked.stop_ids, self.vocab_size
            )
            target.token_ids.append(token)
            token_ids.append(token)
            logprobs.append(token_logprobs(history, token, asked.params.logprobs, self.vocab_size))
        return StepResult(tuple(token_ids), tuple(logprobs), tuple(self._prompt_logprobs(plan)))

    def _prompt_logprobs(self, plan: SchedulerOutput) -> Iterable[PromptLogprobs]:
        for slot, start, num_tokens in plan.rows:
            row = self.rows[slot]
            top = row.admitted.params.prompt_logprobs
            stop = min(start + num_tokens, row.admitted.prompt_len - 1)
            if top is None or start >= stop:
                continue
            history = self._history(row, stop)
            entries = (
                token_logprobs(history[: position + 1], row.token_ids[position + 1], top, self.vocab_size)
                for position in range(start, stop)
            )
            yield PromptLogprobs(slot, start + 1, tuple(e for e in entries if e is not None))


def next_cell(token_id: int, position: int, before: int) -> Cell:
    """The cell of a token at `position` whose predecessor's chain is `before`."""
    return Cell(token_id, position, hash((before, token_id, position)))


def draw(
    history: Sequence[Cell],
    params: SamplingParams,
    seed: int,
    index: int,
    prompt_len: int,
    stop_ids: Sequence[int],
    vocab_size: int,
) -> int:
    """The id that comes after `history`: hashed from it and, unless greedy, from seed, sample index and position."""
    num_outputs = len(history) - prompt_len
    key = () if params.greedy else (seed, index, num_outputs)
    token = hash((tuple(history), key)) % vocab_size
    banned = set(stop_ids) if num_outputs < params.min_tokens else set()
    while token in banned:
        token = (token + 1) % vocab_size
    return token


def ranking(history: Sequence[Cell], vocab_size: int) -> list[tuple[float, int]]:
    """Every id after its made-up log probability, the likeliest first; they are unlike those of any other history."""
    mixed = hash(tuple(history))
    return sorted(((-(hash((mixed, token)) % 10**9) / 10**8, token) for token in range(vocab_size)), reverse=True)


def token_logprobs(
    history: Sequence[Cell], token_id: int, top: int | None, vocab_size: int = 16
) -> TokenLogprobs | None:
    """The log probability and rank of `token_id` after `history`, and the `top` likeliest ids; None if not asked."""
    if top is None:
        return None
    ranked = ranking(history, vocab_size)
    rank = [token for _, token in ranked].index(token_id)
    best = ranked[:top]
    return TokenLogprobs(ranked[rank][0], 1 + rank, tuple(t for _, t in best), tuple(score for score, _ in best))


@dataclass(frozen=True, slots=True)
class Answer:
    """What one sequence of a request should give."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    finish_reason: FinishReason


def oracle(request: Request, index: int, max_len: int, vocab_size: int = 16) -> Answer:
    """Sequence `index` of the request computed from scratch, without pages, until it stops or has `max_len` tokens."""
    params = request.params
    prompt_len = len(request.prompt_token_ids)
    stops = set(params.stop_token_ids or ()) | (set() if params.ignore_eos else set(request.eos_token_ids))
    cells = cells_of(request.prompt_token_ids)
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs | None] = []
    while True:
        token = draw(cells, params, request.seed, index, prompt_len, sorted(stops), vocab_size)
        logprobs.append(token_logprobs(cells, token, params.logprobs, vocab_size))
        token_ids.append(token)
        if token in stops and len(token_ids) > params.min_tokens:
            return Answer(token_ids, logprobs, FinishReason.STOP)
        if prompt_len + len(token_ids) >= max_len:
            return Answer(token_ids, logprobs, FinishReason.LENGTH)
        cells.append(next_cell(token, len(cells), cells[-1].chain))


def oracle_prompt_logprobs(request: Request) -> list[TokenLogprobs]:
    """The entries of the prompt's positions 1, 2, ... computed from scratch."""
    ids, top = request.prompt_token_ids, request.params.prompt_logprobs
    cells = cells_of(ids)
    entries = (token_logprobs(cells[:position], ids[position], top) for position in range(1, len(ids)))
    return [entry for entry in entries if entry is not None]


def cells_of(token_ids: Sequence[int]) -> list[Cell]:
    """The cells that a sequence of ids should leave behind."""
    cells: list[Cell] = []
    for position, token in enumerate(token_ids):
        cells.append(next_cell(token, position, cells[-1].chain if cells else 0))
    return cells
