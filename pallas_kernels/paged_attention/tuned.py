"""Sizes that trade speed for nothing else.

Lives here: the tuning record of decode attention.
Promises: a result depends on a record only in its rounding.
Must not know: how an implementation uses its numbers.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class DecodeTuning:
    """Sizes of a decode kernel; None in a field means the implementation's own choice.

    `block_tokens`: tokens read at a time. `splits`: parts of a context that run in parallel and are merged (triton).
    `num_warps`, `num_stages`: of a Triton program.
    """

    block_tokens: int | None = None
    splits: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
