"""What an experiment serves: when each request arrives, how long it is, and what it shares with others.

Frozen columns of integers; equal columns have equal digests, and equal prompts in every run.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, pairwise

import numpy as np

from jpaged.config.declaration import require_int
from jpaged.workloads.token_ids import Span, span_ids

SECOND = 1_000_000_000
MAX_TOKENS = 1 << 31
MAX_NUMBER = (1 << 60) - 1


class RowError(ValueError):
    """A mistake in one row: `row` counts from 0, `text` is the message without it."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(f"row {row}: {text}")
        self.row, self.text = row, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in order of arrival, one an index of the columns.

    `arrival_ns` counts from the start of the run. At most one kind of sharing with other requests is said per row:

    - `prefix_ids` names each `prefix_unit` tokens of a prompt (the last block may be shorter): equal ids, equal tokens.
    - `session` and `turn`: the prompt of a later turn begins with the prompt and the answer of the turns before.
    - `shared_prefix_tokens`: the number of first tokens that all prompts share; for sessions alone.

    `source` says where it is from and under which licence. `num_dropped` requests of the source were left out
    because they were too long; `notes` say what else was done. None of these four, nor `name`, is in the digest.
    Raises ValueError naming the field, the row and what to do.
    """

    arrival_ns: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    prefix_ids: tuple[tuple[int, ...], ...] | None = None
    prefix_unit: int | None = None
    session: tuple[int, ...] | None = None
    turn: tuple[int, ...] | None = None
    shared_prefix_tokens: int = 0
    name: str = "unnamed"
    source: str = "not said"
    num_dropped: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("arrival_ns", "output_tokens", "session", "turn", "prefix_ids"):
            column = getattr(self, field)
            if column is not None and len(column) != len(self.prompt_tokens):
                raise ValueError(
                    f"{field} has {len(column)} rows, prompt_tokens {len(self.prompt_tokens)}; "
                    "give one value per request"
                )
        _require_column("prompt_tokens", self.prompt_tokens, 1, MAX_TOKENS)
        _require_column("output_tokens", self.output_tokens, 1, MAX_TOKENS)
        _require_column("arrival_ns", self.arrival_ns, 0, MAX_NUMBER)
        for row, (earlier, later) in enumerate(pairwise(self.arrival_ns), 1):
            if later < earlier:
                raise RowError(row, f"arrival_ns={later}: is before the {earlier} of the row above; sort by arrival")
        require_int("shared_prefix_tokens", self.shared_prefix_tokens, 0, MAX_TOKENS)
        require_int("num_dropped", self.num_dropped, 0, None)
        if self.shared_prefix_tokens > min(self.prompt_tokens, default=MAX_TOKENS):
            raise ValueError(
                f"shared_prefix_tokens={self.shared_prefix_tokens}: a prompt has {min(self.prompt_tokens)} tokens; "
                "the shared prefix is a part of each prompt, so lengthen the prompts or shorten it"
            )
        self._check_prefix_ids()
        self._check_sessions()

    def _check_prefix_ids(self) -> None:
        if (self.prefix_ids is None) != (self.prefix_unit is None):
            raise ValueError(f"prefix_unit={self.prefix_unit!r}: prefix_ids and prefix_unit go together")
        if self.prefix_ids is None or self.prefix_unit is None:
            return
        require_int("prefix_unit", self.prefix_unit, 1, MAX_TOKENS)
        if self.session is not None or self.shared_prefix_tokens:
            raise ValueError("prefix_ids: say already what is shared; leave out session and shared_prefix_tokens")
        for row, (ids, prompt) in enumerate(zip(self.prefix_ids, self.prompt_tokens, strict=True)):
            _require_column("prefix_ids", ids, 0, MAX_NUMBER, row)
            if len(ids) != -(-prompt // self.prefix_unit):
                raise RowError(
                    row,
                    f"prefix_ids: has {len(ids)} ids, but {prompt} prompt tokens are "
                    f"{-(-prompt // self.prefix_unit)} blocks of prefix_unit={self.prefix_unit}; mend either",
                )

    def _check_sessions(self) -> None:
        if (self.session is None) != (self.turn is None):
            raise ValueError("session: session and turn go together; give both or neither")
        if self.session is None or self.turn is None:
            return
        _require_column("session", self.session, 0, MAX_NUMBER)
        _require_column("turn", self.turn, 0, MAX_NUMBER)
        before: dict[int, tuple[int, int]] = {}
        columns = zip(self.session, self.turn, self.prompt_tokens, self.output_tokens, strict=True)
        for row, (session, turn, prompt, output) in enumerate(columns):
            last, tokens = before.get(session, (-1, 0))
            if turn <= last:
                raise RowError(row, f"turn={turn}: session {session} had turn {last} before; number them upwards")
            if prompt < tokens:
                raise RowError(
                    row,
                    f"prompt_tokens={prompt}: session {session} has {tokens} tokens already, with which the prompt "
                    "begins; give a row whose history was cut a session of its own",
                )
            before[session] = turn, prompt + output

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def digest(self) -> str:
        """The SHA-256 of the requests, in hex: of every column, not of names or notes."""
        # Each part begins with its name and its length, so no two sets of columns are the same bytes.
        parts: list[tuple[str, Sequence[int]]] = [
            ("arrival_ns", self.arrival_ns),
            ("prompt_tokens", self.prompt_tokens),
            ("output_tokens", self.output_tokens),
            ("shared_prefix_tokens", (self.shared_prefix_tokens,)),
        ]
        if self.session is not None and self.turn is not None:
            parts += [("session", self.session), ("turn", self.turn)]
        if self.prefix_ids is not None and self.prefix_unit is not None:
            # The number of ids of a row follows from prompt_tokens.
            parts += [("prefix_unit", (self.prefix_unit,)), ("prefix_ids", tuple(chain.from_iterable(self.prefix_ids)))]
        sha = hashlib.sha256(b"jpaged workload 1\n")
        for name, column in parts:
            sha.update(f"{name} {len(column)}\n".encode())
            sha.update(np.asarray(column, dtype="<i8").tobytes())
        return sha.hexdigest()

    def rows(self, indices: Sequence[int]) -> "Workload":
        """The requests at `indices`, in that order."""

        def pick[T](column: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(column[i] for i in indices)

        return replace(
            self,
            arrival_ns=pick(self.arrival_ns),
            prompt_tokens=pick(self.prompt_tokens),
            output_tokens=pick(self.output_tokens),
            prefix_ids=None if self.prefix_ids is None else pick(self.prefix_ids),
            session=None if self.session is None else pick(self.session),
            turn=None if self.turn is None else pick(self.turn),
        )

    def first(self, count: int) -> "Workload":
        """The first `count` requests; raises ValueError if there are fewer."""
        require_int("count", count, 0, None)
        if count > len(self):
            raise ValueError(f"count={count}: workload {self.name!r} has {len(self)} requests; ask for fewer")
        return self.rows(range(count))

    def time_scaled(self, factor: float) -> "Workload":
        """The same requests with arrivals at `factor` times their times (2: half the rate), rounded to nanoseconds."""
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < float("inf"):
            raise ValueError(f"factor={factor!r}: must be a finite number above 0")
        exact = Fraction(factor)
        return replace(self, arrival_ns=tuple(round(at * exact) for at in self.arrival_ns))

    def token_ids(self, index: int, vocab_size: int) -> tuple[int, ...]:
        """The prompt of request `index`: equal to another's as far as the columns say so, and no further.

        What is not shared differs from its first token on while there are fewer requests (or blocks) than ordinary ids
        (44,000 of them, or `vocab_size` below 45,000); beyond that by chance.
        """
        return span_ids(self._spans(index), vocab_size)

    def answer_ids(self, index: int, vocab_size: int) -> tuple[int, ...]:
        """The answer to request `index`, as the next turn of its session repeats it; without sessions any ids."""
        output = self.output_tokens[index]
        if self.session is None:
            return span_ids((("answer", index, 0, output),), vocab_size)
        start = self.prompt_tokens[index] - self.shared_prefix_tokens
        return span_ids((("session", self.session[index], start, start + output),), vocab_size)

    def _spans(self, index: int) -> tuple[Span, ...]:
        """The prompt as (kind, number, start, stop): pieces of endless streams of ids."""
        prompt = self.prompt_tokens[index]
        if self.prefix_ids is not None and self.prefix_unit is not None:
            unit = self.prefix_unit
            starts = range(0, prompt, unit)
            return tuple(
                ("block", number, 0, min(unit, prompt - start))
                for number, start in zip(self.prefix_ids[index], starts, strict=True)
            )
        kind, number = ("request", index) if self.session is None else ("session", self.session[index])
        return ("shared", 0, 0, self.shared_prefix_tokens), (kind, number, 0, prompt - self.shared_prefix_tokens)


def _require_column(field: str, column: tuple[int, ...], low: int, high: int, in_row: int | None = None) -> None:
    if not isinstance(column, tuple):
        raise ValueError(f"{field}: must be a tuple of integers, is a {type(column).__name__}; use tuple(...)")
    for row, value in enumerate(column):
        if type(value) is not int or not low <= value <= high:
            raise RowError(
                row if in_row is None else in_row, f"{field}={value!r}: must be an integer in [{low}, {high}]"
            )
