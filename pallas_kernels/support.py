"""What an implementation can do, as data.

Lives here: Support, the record that each implementation module holds as SUPPORT, its check, and `support_of`.
Promises: an implementation runs exactly what its record says: the same record refuses a call and fills the table of
docs/kernels.md.
Must not know: how anything is computed.
"""

import importlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels.kv_pages import FLOAT_DTYPES, KVPages
from pallas_kernels.quantised import LARGEST
from pallas_kernels.scores import ScoreRule

POOL_DTYPES = tuple(jnp.dtype(dtype).name for dtype in (*FLOAT_DTYPES, *LARGEST))


@dataclass(frozen=True)
class Support:
    """What one implementation of one operation takes; None: any.

    `hardware` says where it runs and `proof` how it is checked where there is no GPU. `max_group` bounds the query
    heads of a kv head. `score_options` are the attention options it has, `tuning` the fields it lets one set.
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

    def objections(
        self, kv: KVPages, q: Array | None, rule: ScoreRule | None, alibi_slopes: Array | None
    ) -> Sequence[str]:
        """Each thing about a call that this implementation lacks, in words; none if it can do it."""
        return [*self._about_pool(kv), *self._about_queries(kv, q), *self._about_options(rule, alibi_slopes)]

    def _about_pool(self, kv: KVPages) -> Sequence[str]:
        found = []
        if kv.k.dtype.name not in self.pool_dtypes:
            found.append(f"a pool of {kv.k.dtype.name} (it takes {', '.join(self.pool_dtypes)})")
        if kv.page_size % self.page_size_multiple:
            found.append(f"page_size={kv.page_size} (it takes multiples of {self.page_size_multiple})")
        if self.head_dims is not None and kv.head_dim not in self.head_dims:
            found.append(f"head_dim={kv.head_dim} (it takes {', '.join(map(str, self.head_dims))})")
        return found

    def _about_queries(self, kv: KVPages, q: Array | None) -> Sequence[str]:
        found = []
        if q is None:
            return found
        group = q.shape[1] // kv.num_kv_heads
        if self.max_group is not None and group > self.max_group:
            found.append(f"{group} query heads a kv head (it takes up to {self.max_group})")
        if self.query_dtype_is_pool_dtype and q.dtype != kv.k.dtype:
            found.append(f"queries of {q.dtype} on a pool of {kv.k.dtype} (it takes one dtype for both)")
        return found

    def _about_options(self, rule: ScoreRule | None, alibi_slopes: Array | None) -> Sequence[str]:
        given = {
            "window": rule is not None and rule.window is not None,
            "soft_cap": rule is not None and rule.soft_cap is not None,
            "alibi_slopes": alibi_slopes is not None,
        }
        return [name for name, is_given in given.items() if is_given and name not in self.score_options]

    def check(
        self,
        name: str,
        kv: KVPages,
        q: Array | None = None,
        rule: ScoreRule | None = None,
        alibi_slopes: Array | None = None,
        tuning: Any = None,
    ) -> None:
        """Nothing, or NotImplementedError that says what `name` lacks; `tuning` is a tuning record."""
        found = self.objections(kv, q, rule, alibi_slopes)
        if found:
            raise NotImplementedError(f"implementation={name!r} does not support {'; nor '.join(found)}")
        if tuning is None:
            return
        if not self.tuning:
            raise NotImplementedError(f"implementation={name!r} has nothing to tune; pass tuning=None")
        if any(value is not None and field not in self.tuning for field, value in asdict(tuning).items()):
            raise NotImplementedError(f"implementation={name!r} tunes {' and '.join(self.tuning)} only; got {tuning}")


def supports_of(operation: str, implementation: str) -> dict[str, Support]:
    """The records of an implementation, by variant; "" where there is one for all hardware, none if it is absent."""
    try:
        module = importlib.import_module(f"pallas_kernels.{operation}.{implementation}")
    except ModuleNotFoundError:
        return {}
    return dict(module.SUPPORT) if isinstance(module.SUPPORT, dict) else {"": module.SUPPORT}
