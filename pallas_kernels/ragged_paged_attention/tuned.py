"""Sizes that trade speed for nothing else.

Lives here: the tuning record of ragged attention, and the table of what is best where (`tuned.json`).
Promises: a result depends on a record only in its rounding.
Must not know: how an implementation uses its numbers.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jaxtyping import Array, Float

from pallas_kernels.kv_pages import KVPages
from pallas_kernels.tuning_table import TunedEntry, TuningTable, device_kind, read_table

TABLE = Path(__file__).with_name("tuned.json")


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


@cache
def table() -> TuningTable:
    """The package's table. Raises ValueError if the file was spoilt."""
    return read_table(TABLE, "ragged_paged_attention", RaggedTuning)


def entry_for(implementation: str, q: Float[Array, "T N H"], kv: KVPages) -> TunedEntry | None:
    """The entry that a call without a tuning takes on the device traced for, with its source; None: there is none."""
    kinds = (device_kind(), implementation, q.dtype.name, kv.k.dtype.name)
    return table().find((*kinds, q.shape[1], kv.num_kv_heads, kv.head_dim, kv.page_size), q.shape[0])


def tuning_for(implementation: str, q: Float[Array, "T N H"], kv: KVPages) -> RaggedTuning | None:
    """The sizes that a call without a tuning takes; None: the implementation's own rules."""
    entry = entry_for(implementation, q, kv)
    return entry and entry.tuning
