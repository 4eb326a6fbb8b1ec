"""The kernels alone: time, bytes, and the share of what a copy of as many bytes reaches in the same run.

Ways that are compared are timed in turns and give the same output; a way that fails loses nothing but itself.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp

from jpaged.bench.kernels_points import Arrays, HeadShape, Point, arrays_of
from jpaged.bench.kernels_timing import Run, alternate
from jpaged.bench.kernels_variants import CONTIGUOUS, COPY, GATHER, variants_of
from jpaged.bench.measure import machine
from pallas_kernels import beside_attention, resolve
from pallas_kernels.numerics import LARGEST_DIFFERENCE
from pallas_kernels.tuning import entry_for

IMPLEMENTATIONS = {"cpu": ("xla",), "gpu": ("triton", "mosaic_gpu", "xla")}
"""What is measured on each platform unless implementations are named."""

FIG18A_HEADS = HeadShape(40, 40, 128)
"""One layer of OPT-13B."""
FIG18A: dict[tuple[int, int], tuple[float, float]] = {
    (8, 64): (31.46, 21.88), (8, 128): (43.56, 34.90), (8, 256): (84.32, 62.34),
    (32, 64): (77.12, 61.42), (32, 128): (127.06, 106.74), (32, 256): (235.29, 194.51),
}  # fmt: skip
"""Microseconds of vLLM's kernel and of FasterTransformer's by batch and context, read off the figure (an A100)."""

OPERATION_OF = {
    "decode": "paged_attention",
    "ragged": "ragged_paged_attention",
    "write": "write_kv",
    "copy": "copy_pages",
}


def fig18a_points(dtype: str, layers: int = 1) -> list[Point]:
    """The points of Fig. 18a, in pages of 16 tokens."""
    return [
        Point(
            operation="decode", page_size=16, batch=batch, context=context, heads=FIG18A_HEADS, dtype=dtype,
            layers=layers,
        )
        for batch, context in FIG18A
    ]  # fmt: skip


def facts() -> dict[str, Any]:
    """Where a run was made, and which implementation each operation takes there by itself."""
    return machine() | {
        "implementations": {operation: resolve(operation) for operation in OPERATION_OF.values()},
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def measure_point(
    point: Point,
    implementations: Sequence[str] | None = None,
    *,
    interpret: bool = False,
    **timing: Any,
) -> list[dict[str, Any]]:
    """A row for each way of doing a point; `implementations`: None for those of the platform. Raises ValueError.

    A row has `seconds` (of one layer's call, the median), `seconds_low` and `_high` (10th and 90th percentile),
    `bytes`, `gb_per_second`, `copy_gb_per_second` (a copy that moves as many bytes, same run and dtype) and
    `share_of_copy`. A way that cannot do a point, or fails, has `error` in their place. `timing` goes to `alternate`.
    """
    arrays = arrays_of(point)
    implementations = implementations or IMPLEMENTATIONS["cpu" if jax.default_backend() == "cpu" else "gpu"]
    ways = variants_of(point, arrays, implementations, interpret=interpret)
    # Values of a quantised pool are used as they are by kernels, and rounded to the queries' dtype by what gathers.
    slack = 1.0 if point.kv_dtype in ("auto", point.dtype) else 20.0
    alike = [name for name in ways if name != COPY] if point.operation in ("decode", "ragged") else []
    allowed = slack * LARGEST_DIFFERENCE[point.dtype]
    found = try_ways(ways, GATHER, alike, allowed, parts=point.layers, **timing)
    rows = [_about(point, arrays, name) | way for name, way in found.items()]
    _compare(rows, point.bytes_moved)
    return rows


def try_ways(
    ways: Mapping[str, Callable[[], Run]], first: str, alike: Sequence[str], allowed: float, **timing: Any
) -> dict[str, dict[str, Any]]:
    """By name, what a way's Timing says, and its largest `difference` from `first`.

    Those called `alike` must give what `first` gives, if that runs; others have None as their difference. A way that
    fails, or differs by more than `allowed`, has `error` alone. `timing` goes to `alternate`.
    """
    runs: dict[str, Run] = {}
    found: dict[str, dict[str, Any]] = {name: {"difference": None} for name in ways}
    for name, ready in ways.items():
        try:
            run = ready()
            jax.block_until_ready(run())
            runs[name] = run
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
    right = runs[first]().astype(jnp.float32) if first in runs and alike else None
    for name in [name for name in alike if name in runs and name != first and right is not None]:
        difference = float(jnp.abs(runs[name]().astype(jnp.float32) - right).max())
        found[name] = {"difference": difference}
        if not difference <= allowed:
            found[name] = {"error": f"AssertionError: its output is {difference:.2g} off that of {first}"}
            del runs[name]
    for name, times in alternate(runs, **timing).items():
        found[name] |= times._asdict()
    return found


def _about(point: Point, arrays: Arrays, variant: str) -> dict[str, Any]:
    about: dict[str, Any] = asdict(point) | {
        "variant": variant,
        "table_tokens": point.table_width * point.page_size,
        "heads": str(point.heads),
        "kv_dtype": point.pool_dtype.name,
    }
    if variant in ("triton", "mosaic_gpu", "xla", "reference"):
        about["implementation"] = beside_attention(variant) if point.operation in ("write", "copy") else variant
        # The table has sizes of attention kernels alone; None: a kernel's own rules.
        entry = entry_for(OPERATION_OF[point.operation], variant, arrays.q, arrays.kv)
        about["tuning"] = None if entry is None else "measured"
    return about


def _compare(rows: list[dict[str, Any]], num_bytes: int) -> None:
    """Adds rates for `num_bytes` a call, and the shares of the other ways' times.

    `times_gather` is how many times as fast as gathering a kernel is, `paging_overhead` what it takes over the best
    without pages.
    """
    seconds = {row["variant"]: row["seconds"] for row in rows if "seconds" in row}
    without_pages = [seconds[name] for name in CONTIGUOUS if name in seconds]
    for row in rows:
        if "seconds" not in row:
            continue
        row |= {"bytes": num_bytes, "gb_per_second": num_bytes / row["seconds"] / 1e9}
        if COPY in seconds:
            row["copy_gb_per_second"] = num_bytes / seconds[COPY] / 1e9
            row["share_of_copy"] = seconds[COPY] / row["seconds"]
        if "implementation" not in row:
            continue
        if GATHER in seconds:
            row["times_gather"] = seconds[GATHER] / row["seconds"]
        if without_pages:
            row["paging_overhead"] = row["seconds"] / min(without_pages) - 1
