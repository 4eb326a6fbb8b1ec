"""Sizes that trade speed for nothing else.

Lives here: the tuning record of ragged attention.
Promises: a result depends on a record only in its rounding.
Must not know: how an implementation uses its numbers.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RaggedTuning:
    """Sizes of a ragged kernel; None in a field means the implementation's own choice.

    `block_queries`: queries of one row handled together. `block_tokens`: tokens read at a time.
    `num_warps`: of a Triton program. `num_stages`: blocks in flight, of a Triton program or a Mosaic ring.
    """

    block_queries: int | None = None
    block_tokens: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
