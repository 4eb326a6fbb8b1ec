"""The sections `correctness` and `correctness_mosaic`: every GPU kernel against the reference.

Garbage lies wherever a kernel must not look. Writes and copies are compared byte for byte.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jpaged.gpu_check.sections import SectionRun
from pallas_kernels import KVPages, allocate, copy_pages, paged_attention, ragged_paged_attention, write_kv
from pallas_kernels.numerics import LARGEST_DIFFERENCE

LAYER, LAYERS = 1, 2
Heads = tuple[int, int, int]
Program = Callable[..., Any]
Call = tuple[Program, tuple[Any, ...]]
OPERATIONS: dict[str, Program] = {
    "paged_attention": paged_attention,
    "ragged_paged_attention": ragged_paged_attention,
    "write_kv": write_kv,
    "copy_pages": copy_pages,
}


@dataclass(frozen=True)
class Check:
    """One kernel on one shape. `num_queries`: newest tokens of each row that ask."""

    operation: str
    implementation: str
    heads: Heads = (9, 3, 64)
    dtype: str = "bfloat16"
    kv_dtype: str | None = None
    page_size: int = 16
    lengths: tuple[int, ...] = (1, 300, 0, 64, 1025, 17)
    num_queries: tuple[int, ...] = (1, 130, 0, 64, 1, 5)
    options: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        """What tells it from the others."""
        heads = "x".join(map(str, self.heads))
        options = "".join(f", {name}={value}" for name, value in self.options)
        pool = f", pool {self.kv_dtype}" if self.kv_dtype else ""
        return f"{self.operation} {self.implementation}: {heads} {self.dtype}{pool}, pages of {self.page_size}{options}"


def check_correctness(run: SectionRun, implementation: str) -> None:
    """`checks`: one entry each; `num_right`, `num_wrong` (a kernel that fails is wrong) and `num_absent`."""
    run.found |= {"num_right": 0, "num_wrong": 0, "num_absent": 0, "checks": []}
    checks = list(_tiny_checks(implementation) if run.tiny else _checks(implementation))
    together = 4 if run.tiny else 16
    starts = range(0, len(checks), together)
    for first in run.in_time(starts, lambda first: f"checks from {checks[first].name} on", needed=2.0):
        for entry in _results(checks[first : first + together], interpret=run.tiny):
            run.found["checks"].append(entry)
            run.found[f"num_{entry['outcome']}"] += 1


def _checks(implementation: str) -> Iterator[Check]:
    decode, ragged = ("paged_attention", implementation), ("ragged_paged_attention", implementation)
    llama, opt = (32, 8, 128), (8, 8, 128)
    for base in (decode, ragged):
        for heads in ((9, 3, 64), llama, opt):
            yield from (Check(*base, heads, dtype) for dtype in ("bfloat16", "float16"))
        yield from (Check(*base, llama, page_size=size) for size in (8, 32, 256))
        yield from (Check(*base, llama, options=(option,)) for option in (("window", 40), ("soft_cap", 5.0)))
    if implementation == "mosaic_gpu":
        return
    for base in (decode, ragged):
        yield from (Check(*base, heads, "float32") for heads in ((9, 3, 64), llama))
        yield from (Check(*base, llama, kv_dtype=kv) for kv in ("int8", "float8_e4m3fn", "float8_e5m2"))
        yield Check(*base, (9, 3, 64), "float32", "int8")
        yield from (Check(*base, page_size=size) for size in (1, 24))
        yield Check(*base, (12, 4, 80))
    for operation in ("write_kv", "copy_pages"):
        for kv in ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2"):
            yield from (Check(operation, implementation, heads, kv_dtype=kv) for heads in ((9, 3, 64), llama))
        yield Check(operation, implementation, page_size=24)


def _tiny_checks(implementation: str) -> Iterator[Check]:
    small: dict[str, Any] = {"lengths": (1, 20, 0), "num_queries": (1, 6, 0)}
    if implementation == "mosaic_gpu":
        yield Check("paged_attention", implementation, (2, 1, 64), **small)
        return
    for operation in ("paged_attention", "ragged_paged_attention"):
        yield Check(operation, implementation, (4, 2, 16), "float32", **small)
        yield Check(operation, implementation, (4, 2, 16), "bfloat16", "int8", **small)
    for operation in ("write_kv", "copy_pages"):
        yield from (Check(operation, implementation, (4, 2, 16), kv_dtype=kv, **small) for kv in ("bfloat16", "int8"))


def _results(checks: Sequence[Check], interpret: bool) -> Iterator[dict[str, Any]]:
    arguments = [_arguments(check) for check in checks]
    calls: list[Call] = []
    for check, given in zip(checks, arguments, strict=True):
        interpreted = interpret and check.implementation in ("triton", "mosaic_gpu")
        calls.append((_call(check, {"implementation": check.implementation, "interpret": interpreted}), given))
        calls.append((_call(check, {"implementation": "reference"}), given))
    compiled = compile_all(calls)
    for check, given, program, reference in zip(checks, arguments, compiled[::2], compiled[1::2], strict=True):
        outcome = _outcome(check, program, reference, given)
        yield {"name": check.name, "operation": check.operation, "implementation": check.implementation} | outcome


def _outcome(check: Check, program: Any, reference: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if isinstance(program, NotImplementedError):
        return {"outcome": "absent", "error": str(program)[:400]}
    try:
        for each in (program, reference):
            if isinstance(each, Exception):
                raise each
        got, right = jax.block_until_ready((program(*arguments), reference(*arguments)))
    except Exception as error:
        return {"outcome": "wrong", "error": f"{type(error).__name__}: {str(error)[:1000]}"}
    if isinstance(got, KVPages):
        pairs = zip(jax.tree.leaves(got), jax.tree.leaves(right), strict=True)
        same = [np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs]
        return {"outcome": "right" if all(same) else "wrong", "same_bytes": same}
    difference = float(np.abs(np.asarray(got, np.float64) - np.asarray(right, np.float64)).max())
    # 16-bit queries of a quantised pool weigh values in bfloat16.
    quantised = check.kv_dtype is not None and check.dtype != "float32"
    allowed = LARGEST_DIFFERENCE["bfloat16" if quantised else check.dtype]
    # A comparison with NaN is false, so that a NaN is wrong.
    outcome = "right" if difference <= allowed else "wrong"
    return {"outcome": outcome, "difference": difference, "allowed": allowed}


def compile_all(calls: Sequence[Call]) -> list[Program | Exception]:
    """Each function compiled for its arguments, several at a time: XLA's compiler needs no interpreter lock.

    One that does not compile is an error of its own; the others are there.
    """

    def compiled(call: Call) -> Program | Exception:
        function, arguments = call
        try:
            return jax.jit(function).lower(*arguments).compile()
        except Exception as error:
            return error

    with ThreadPoolExecutor(max(1, min(16, os.cpu_count() or 1))) as pool:
        return list(pool.map(compiled, calls))


def _call(check: Check, how: dict[str, Any]) -> Any:
    layer = {} if check.operation == "copy_pages" else {"layer": LAYER}
    return partial(OPERATIONS[check.operation], **layer, **dict(check.options), **how)


def _arguments(check: Check) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    heads, kv_heads, head_dim = check.heads
    lengths = np.array(check.lengths, np.int32)
    pages_of = -(-lengths // check.page_size)
    num_pages = 3 + int(pages_of.sum())
    order = 1 + rng.permutation(num_pages - 1)
    # Past a row's end a table may hold anything, even what is no page.
    tables = np.full((len(lengths), max(pages_of) + 1), 10**6, np.int32)
    slots = []
    for row, (length, count) in enumerate(zip(lengths, pages_of, strict=True)):
        tables[row, :count], order = order[:count], order[count:]
        position = np.arange(length)
        slots.append(tables[row, position // check.page_size] * check.page_size + position % check.page_size)
    slots = np.concatenate(slots).astype(np.int32)
    k, v = (jnp.asarray(rng.standard_normal((slots.size, kv_heads, head_dim)), check.dtype) for _ in range(2))
    pool = _garbage(allocate(LAYERS, num_pages, check.page_size, kv_heads, head_dim, check.kv_dtype or check.dtype))
    if check.operation == "write_kv":
        # Slots past the layer and before it are dropped.
        outside = np.array([pool.num_slots, -1, pool.num_slots + 5], np.int32)
        k, v = (jnp.pad(x, ((0, 3), (0, 0), (0, 0))) for x in (k, v))
        return pool, k, v, np.append(slots, outside)
    pool = write_kv(pool, k, v, jnp.asarray(slots), layer=LAYER, implementation="reference")
    if check.operation == "copy_pages":
        return pool, jnp.array([1, 0, 2], jnp.int32), jnp.array([num_pages - 1, 0, num_pages - 2], jnp.int32)
    decode = check.operation == "paged_attention"
    num_queries = len(lengths) if decode else sum(check.num_queries) + 3
    q = jnp.asarray(rng.standard_normal((num_queries, heads, head_dim)), check.dtype)
    arrays = (q, pool, jnp.asarray(tables), jnp.asarray(lengths))
    return arrays if decode else (*arrays, jnp.asarray(np.cumsum([0, *check.num_queries]), jnp.int32))


def _garbage(pool: KVPages) -> KVPages:
    """The pool full of NaN; integers full of their largest, with scales of NaN."""

    def fill(array: jax.Array) -> jax.Array:
        whole = jnp.issubdtype(array.dtype, jnp.integer)
        return jnp.full_like(array, jnp.iinfo(array.dtype).max if whole else jnp.nan)

    return jax.tree.map(fill, pool)
