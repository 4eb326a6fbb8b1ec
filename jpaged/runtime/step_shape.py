"""The few array shapes that steps come in, and where each field lies in a step's packed arrays.

Lives here: StepShape, Buckets, IntField and FloatField layouts.
Promises: equal shapes have equal layouts; the number of shapes is bounded by the configuration alone.
Must not know: plans, models.
"""

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# Fields of the sampler that are one int32 (or one float32) a logits row.
SAMPLE_INTS = (
    "lanes", "top_k", "seed_hi", "seed_lo", "sample_index", "output_position", "prompt_len", "num_tokens",
    "min_tokens", "num_logprobs",
)  # fmt: skip
SAMPLE_FLOATS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip

# Two rows at the least: a lone row takes another path through XLA's CPU matrix product (slower in bfloat16, and
# with other rounding), so that a sequence alone could differ from the same one in company.
MIN_ROWS = 2
MIN_RAGGED_TOKENS = 16
HALFWAY_FROM = 64


class Field(NamedTuple):
    """A part of a packed array: where it starts and its shape."""

    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """One past its last element."""
        size = 1
        for n in self.shape:
            size *= n
        return self.start + size


@dataclass(frozen=True)
class StepShape:
    """One compiled program's sizes: `T` packed tokens, `B` rows, `Q` logits rows, `M` columns of a block table.

    `decode`: every row has one token (T == B), so attention takes its decode path.
    """

    num_tokens: int
    num_rows: int
    num_samples: int
    table_width: int
    decode: bool

    @cached_property
    def int_fields(self) -> dict[str, Field]:
        """The layout of the packed int32 array."""
        t, b, q = (self.num_tokens,), (self.num_rows,), (self.num_samples,)
        # The sampler's fields come first: their place depends on the number of logits rows alone.
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(SAMPLE_INTS, q)
        shapes |= {
            "token_refs": t,
            "positions": t,
            "slots": t,
            "token_lanes": t,
            "block_tables": (self.num_rows, self.table_width),
            "context_lens": b,
            "sample_rows": q,
        }
        if not self.decode:
            shapes["query_starts"] = (self.num_rows + 1,)
            shapes["prompt_targets"] = t
        return _lay_out(shapes)

    @cached_property
    def num_ints(self) -> int:
        """The length of the packed int32 array."""
        return max(field.stop for field in self.int_fields.values())

    @property
    def num_sample_ints(self) -> int:
        """How many of them, from the first on, are the sampler's."""
        return len(SAMPLE_INTS) * self.num_samples

    @property
    def num_floats(self) -> int:
        """The length of the packed float32 array: SAMPLE_FLOATS, each `Q` long."""
        return len(SAMPLE_FLOATS) * self.num_samples

    def __str__(self) -> str:
        kind = "decode" if self.decode else "ragged"
        return f"{kind}[T={self.num_tokens}, B={self.num_rows}, Q={self.num_samples}, M={self.table_width}]"


def sample_int_fields(num_samples: int) -> dict[str, Field]:
    """The layout of the sampler's part of the packed int32 array."""
    return _lay_out(dict.fromkeys(SAMPLE_INTS, (num_samples,)))


def sample_float_fields(num_samples: int) -> dict[str, Field]:
    """The layout of the packed float32 array."""
    return _lay_out(dict.fromkeys(SAMPLE_FLOATS, (num_samples,)))


def _lay_out(shapes: dict[str, tuple[int, ...]]) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    start = 0
    for name, shape in shapes.items():
        fields[name] = Field(start, shape)
        start = fields[name].stop
    return fields


# How often a shape that is not compiled may borrow a compiled one of up to twice its size, before compiling pays.
DECODE_PATIENCE = 64
RAGGED_PATIENCE = 2


class Buckets:
    """The shapes of an engine: decode steps by rows, in powers of two up to the limit, ragged steps by tokens, with a
    size halfway between powers of two where a token costs more than reading the weights does."""

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int, table_width: int) -> None:
        self._borrowed: Counter[StepShape] = Counter()
        self._rows = _powers_of_two(MIN_ROWS, max(MIN_ROWS, max_num_seqs))
        most = max(MIN_RAGGED_TOKENS, max_num_batched_tokens)
        powers = _powers_of_two(MIN_RAGGED_TOKENS, most)
        halfway = (size // 2 * 3 for size in powers if size >= HALFWAY_FROM)
        self._tokens = sorted({*powers, *(size for size in halfway if size < most)})
        self._width = table_width

    def all(self) -> list[StepShape]:
        """Every shape that `fit` can return."""
        decodes = [self._decode(rows) for rows in self._rows]
        return decodes + [self._ragged(tokens) for tokens in self._tokens]

    def fit(self, *, num_rows: int, num_tokens: int, num_samples: int, decode: bool) -> StepShape:
        """The smallest shape that holds a step."""
        if decode:
            return self._decode(_first_at_least(self._rows, max(num_rows, num_samples)))
        return self._ragged(_first_at_least(self._tokens, num_tokens))

    def most_padding(self, shape: StepShape) -> float:
        """The largest share of a step in this shape that can be padding: of the smallest step that needs it."""
        sizes = self._rows if shape.decode else self._tokens
        smaller = [size for size in sizes if size < shape.num_tokens]
        return 1 - (smaller[-1] + 1 if smaller else 1) / shape.num_tokens

    def borrow(self, wanted: StepShape, compiled: Container[StepShape]) -> StepShape:
        """The shape to run: `wanted`, or a compiled one that holds it while compiling `wanted` does not pay yet.

        A step padded to twice its size costs some tens of ms more on a CPU, a compilation seconds: so a shape is
        compiled once it has been wanted often, the sooner the larger what it borrows.
        """
        if wanted in compiled:
            return wanted
        size = wanted.num_tokens
        holds = [s for s in self.all() if s.decode == wanted.decode and s.num_tokens > size and s in compiled]
        if holds:
            loan = min(holds, key=lambda shape: shape.num_tokens)
            patience = DECODE_PATIENCE if wanted.decode else RAGGED_PATIENCE
            if self._borrowed[wanted] * loan.num_tokens**2 < patience * (2 * size) ** 2:
                self._borrowed[wanted] += 1
                return loan
        return wanted

    def _decode(self, rows: int) -> StepShape:
        return StepShape(rows, rows, rows, self._width, True)

    def _ragged(self, tokens: int) -> StepShape:
        rows = self._rows[-1]
        return StepShape(tokens, rows, rows, self._width, False)


def _powers_of_two(low: int, high: int) -> list[int]:
    sizes = []
    while low < high:
        sizes.append(low)
        low *= 2
    return [*sizes, high]


def _first_at_least(sizes: list[int], n: int) -> int:
    return next(size for size in sizes if size >= n)
