"""What an implementation can do, as data.

Each implementation module holds a record as SUPPORT and runs exactly what it says: the same record refuses a call and
fills the table of docs/kernels.md.
"""

import importlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp

from pallas_kernels.kv_pages import FLOAT_DTYPES
from pallas_kernels.quantised import LARGEST
from pallas_kernels.scores import AttentionCall

POOL_DTYPES = tuple(jnp.dtype(dtype).name for dtype in (*FLOAT_DTYPES, *LARGEST))


@dataclass(frozen=True)
class Support:
    """What one implementation of one operation can do; None: anything.

    `hardware` says where it runs and `proof` how it is checked where there is no GPU. `max_group` bounds the query
    heads per kv head. `score_options` are the attention options it has, `tuning` the fields that may be set.
    `query_dtype_is_pool_dtype`: queries must have the pool's dtype. `notes`: limits that depend on the device or on the
    size of the pool and are checked where those are known.
    """

    hardware: str
    proof: str
    pool_dtypes: tuple[str, ...] = POOL_DTYPES
    page_size_multiple: int = 1
    head_dims: tuple[int, ...] | None = None
    max_group: int | None = None
    score_options: tuple[str, ...] = ("window", "soft_cap", "alibi_slopes")
    tuning: tuple[str, ...] = ()
    query_dtype_is_pool_dtype: bool = False
    notes: tuple[str, ...] = ()

    def check(self, name: str, call: AttentionCall, tuning: Any = None) -> None:
        """Nothing, or NotImplementedError that says what `name` lacks; `tuning` is a tuning record."""
        if found := list(self._objections(call)):
            raise NotImplementedError(f"implementation={name!r} does not support {'; nor '.join(found)}")
        if tuning is None:
            return
        if not self.tuning:
            raise NotImplementedError(f"implementation={name!r} has nothing to tune; pass tuning=None")
        if any(value is not None and field not in self.tuning for field, value in asdict(tuning).items()):
            raise NotImplementedError(f"implementation={name!r} tunes {' and '.join(self.tuning)} only; got {tuning}")

    def _objections(self, call: AttentionCall) -> Iterator[str]:
        kv = call.kv
        if kv.k.dtype.name not in self.pool_dtypes:
            yield f"a pool of {kv.k.dtype.name} (possible: {', '.join(self.pool_dtypes)})"
        if kv.page_size % self.page_size_multiple:
            yield f"page_size={kv.page_size} (possible: multiples of {self.page_size_multiple})"
        if self.head_dims is not None and kv.head_dim not in self.head_dims:
            yield f"head_dim={kv.head_dim} (possible: {', '.join(map(str, self.head_dims))})"
        if self.max_group is not None and call.group > self.max_group:
            yield f"{call.group} query heads per kv head (possible: up to {self.max_group})"
        if self.query_dtype_is_pool_dtype and call.q.dtype != kv.k.dtype:
            yield f"queries of {call.q.dtype} on a pool of {kv.k.dtype} (both must have one dtype)"
        options = {"window": call.rule.window, "soft_cap": call.rule.soft_cap, "alibi_slopes": call.slopes}
        yield from (name for name, given in options.items() if given is not None and name not in self.score_options)


def support_of(operation: str, implementation: str) -> Support | None:
    """The record of an implementation; None if the operation does not have it."""
    try:
        return importlib.import_module(f"pallas_kernels.{operation}.{implementation}").SUPPORT
    except ModuleNotFoundError:
        return None
