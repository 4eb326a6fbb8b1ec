"""Sizes that trade speed for nothing else.

Lives here: the tuning record of decode attention.
Promises: a result depends on a record only in its rounding.
Must not know: how an implementation uses its numbers.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class DecodeTuning:
    """Sizes of a decode kernel; None in a field means the implementation's own choice.

    `block_tokens`: tokens read at a time. `splits`: parts of a context, merged at the end (GPU kernels).
    `num_warps`: of a Triton program. `num_stages`: blocks in flight, of a Triton program or a Mosaic ring.
    """

    block_tokens: int | None = None
    splits: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
