"""The sizes of a compiled step, and where each field lies in the step's packed arrays. Equal shapes, equal layouts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jpaged.runtime.sampling.inputs import SAMPLE_INTS


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
    def int_shapes(self) -> dict[str, tuple[int, ...]]:
        """The fields of the packed int32 array, in their order."""
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
            shapes |= {"query_starts": (self.num_rows + 1,), "prompt_targets": t}
        return shapes

    @cached_property
    def num_ints(self) -> int:
        """The length of the packed int32 array."""
        return sum(map(math.prod, self.int_shapes.values()))

    def __str__(self) -> str:
        kind = "decode" if self.decode else "ragged"
        return f"{kind}[T={self.num_tokens}, B={self.num_rows}, Q={self.num_samples}, M={self.table_width}]"


def unpack(packed: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The named parts of a packed array, one after another: views of NumPy's, slices of JAX's."""
    parts: dict[str, Any] = {}
    start = 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        parts[name] = packed[start:stop].reshape(shape)
        start = stop
    return parts
