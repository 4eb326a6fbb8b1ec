"""The few shapes that steps come in, and the one that a step is run in. Their number depends on the config alone."""

from collections import Counter
from collections.abc import Container

from jpaged.runtime.step_shape import StepShape

# Two rows at the least: a lone row takes another path through XLA's CPU matrix product (slower in bfloat16, and
# with other rounding), so that a sequence alone could differ from the same one in company.
MIN_ROWS = 2
MIN_RAGGED_TOKENS = 16
HALFWAY_FROM = 64
# How often a step is padded to a compiled shape of twice its size before its own shape is compiled.
PADDED_DECODE_STEPS = 64
PADDED_RAGGED_STEPS = 2


class Buckets:
    """The shapes of an engine: decode steps by rows, in powers of two up to the limit, ragged steps by tokens, with a
    size halfway between powers of two where a token costs more than reading the weights does."""

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int, table_width: int) -> None:
        self._padded_steps: Counter[StepShape] = Counter()
        rows = _powers_of_two(MIN_ROWS, max(MIN_ROWS, max_num_seqs))
        most = max(MIN_RAGGED_TOKENS, max_num_batched_tokens)
        powers = _powers_of_two(MIN_RAGGED_TOKENS, most)
        halfway = (size // 2 * 3 for size in powers if size >= HALFWAY_FROM)
        tokens = sorted({*powers, *(size for size in halfway if size < most)})
        self._decode = [StepShape(size, size, size, table_width, True) for size in rows]
        self._ragged = [StepShape(size, rows[-1], rows[-1], table_width, False) for size in tokens]

    def all(self) -> list[StepShape]:
        """Every shape that `fit` can return."""
        return self._decode + self._ragged

    def fit(self, *, num_rows: int, num_tokens: int, num_samples: int, decode: bool) -> StepShape:
        """The smallest shape that holds a step."""
        size = max(num_rows, num_samples) if decode else num_tokens
        return next(shape for shape in self._of_kind(decode) if shape.num_tokens >= size)

    def most_padding(self, shape: StepShape) -> float:
        """The largest share of a step in this shape that can be padding: of the smallest step that needs it."""
        smaller = [s.num_tokens for s in self._of_kind(shape.decode) if s.num_tokens < shape.num_tokens]
        return 1 - (smaller[-1] + 1 if smaller else 1) / shape.num_tokens

    def choose(self, fitting: StepShape, compiled: Container[StepShape]) -> StepShape:
        """The shape to run a step in: the fitting one, or a larger compiled one while compiling does not pay yet.

        A step padded to twice its size costs some tens of ms more on a CPU, a compilation seconds: so a shape is
        compiled once it has been needed often, the sooner the larger the one that takes its place.
        """
        size = fitting.num_tokens
        usable = (s for s in self._of_kind(fitting.decode) if s.num_tokens >= size and s in compiled)
        smallest = next(usable, fitting)
        if smallest == fitting:
            return fitting
        most = PADDED_DECODE_STEPS if fitting.decode else PADDED_RAGGED_STEPS
        if self._padded_steps[fitting] * smallest.num_tokens**2 >= most * (2 * size) ** 2:
            return fitting
        self._padded_steps[fitting] += 1
        return smallest

    def _of_kind(self, decode: bool) -> list[StepShape]:
        return self._decode if decode else self._ragged


def _powers_of_two(low: int, high: int) -> list[int]:
    sizes = []
    while low < high:
        sizes.append(low)
        low *= 2
    return [*sizes, high]
