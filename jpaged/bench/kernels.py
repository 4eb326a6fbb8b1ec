"""The kernels alone: time, bytes, and the share of what a copy of as many bytes reaches in the same run.

Lives here: `bench_kernels`, which measures points, and the points of the paper's Fig. 18a.
Promises: ways that are compared are timed in turns and give the same output; a way that fails loses nothing but itself.
Must not know: flags, files, plots.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jpaged.bench.kernels_points import Arrays, HeadShape, Point, arrays_of
from jpaged.bench.kernels_timing import Timing, alternate
from jpaged.bench.kernels_variants import CONTIGUOUS, COPY, GATHER, Run, variants_of
from pallas_kernels import beside_attention, resolve
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

_KERNELS = {"decode": "paged_attention", "ragged": "ragged_paged_attention", "write": "write_kv", "copy": "copy_pages"}
_ALLOWED = {"float32": 2e-5, "bfloat16": 4e-2, "float16": 5e-3}


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
    device = jax.devices()[0]
    return {
        "device": f"{device.platform}: {device.device_kind}",
        "jax": jax.__version__,
        "implementations": {operation: resolve(operation) for operation in _KERNELS.values()},
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def bench_kernels(
    points: Sequence[Point],
    *,
    implementations: Sequence[str] | None = None,
    repeats: int = 11,
    interpret: bool = False,
    budget: float = 30.0,
    on_point: Callable[[list[dict[str, Any]]], object] = lambda rows: None,
) -> dict[str, Any]:
    """Where it was run, and a row for each point and way of doing it. Raises ValueError.

    A row has `seconds` (of one layer's call, the median), `seconds_low` and `_high` (10th and 90th percentile),
    `bytes`, `gb_per_second`, `copy_gb_per_second` (a copy that moves as many bytes, same run and dtype) and
    `share_of_copy`. A way that cannot do a point, or fails, has `error` in their place. `on_point` gets the rows of a
    point as they come. `budget`: seconds of timing a point at most.
    """
    names = IMPLEMENTATIONS["cpu" if jax.default_backend() == "cpu" else "gpu"]
    rows: list[dict[str, Any]] = []
    for point in points:
        found = measure_point(point, implementations or names, repeats=repeats, interpret=interpret, budget=budget)
        on_point(found)
        rows += found
    return facts() | {"rows": rows}


def measure_point(
    point: Point,
    implementations: Sequence[str],
    *,
    repeats: int = 11,
    interpret: bool = False,
    budget: float = 30.0,
    tuning: Any = None,
) -> list[dict[str, Any]]:
    """The rows of one point, a way each; see `bench_kernels`."""
    arrays = arrays_of(point)
    runs: dict[str, Run] = {}
    errors: dict[str, str] = {}
    for name, ready in variants_of(point, arrays, implementations, interpret=interpret, tuning=tuning).items():
        try:
            run = ready()
            jax.block_until_ready(run())
            runs[name] = run
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {str(error)[:400]}"
    differences = _differences(point, runs)
    for name, difference in differences.items():
        if not difference <= _ALLOWED[point.dtype] * _slack(point):
            errors[name] = f"AssertionError: its output is {difference:.2g} off the gathered one"
            del runs[name]
    timings = alternate(runs, repeats=repeats, budget=budget)
    rows = [_row(point, arrays, name, timings[name], timings.get(COPY)) for name in runs]
    for row in rows:
        row["difference"] = differences.get(row["variant"])
    rows += [_about(point, arrays, name) | {"error": error} for name, error in errors.items()]
    _compare(rows)
    return rows


def _slack(point: Point) -> float:
    # Values of a quantised pool are used as they are by kernels, and rounded to the queries' dtype by what gathers.
    return 1.0 if point.kv_dtype in ("auto", point.dtype) else 20.0


def _differences(point: Point, runs: dict[str, Run]) -> dict[str, float]:
    """The largest difference of each way of attention from gathering everything."""
    if point.operation not in ("decode", "ragged") or GATHER not in runs:
        return {}
    right = runs[GATHER]().astype(jnp.float32)
    names = [name for name in runs if name not in (COPY, GATHER)]
    return {name: float(jnp.abs(runs[name]().astype(jnp.float32) - right).max()) for name in names}


def _about(point: Point, arrays: Arrays, variant: str) -> dict[str, Any]:
    about: dict[str, Any] = {
        "operation": point.operation,
        "variant": variant,
        "page_size": point.page_size,
        "batch": point.batch,
        "context": point.context,
        "queries": point.queries,
        "table_tokens": point.table_width * point.page_size,
        "heads": str(point.heads),
        "dtype": point.dtype,
        "kv_dtype": point.pool_dtype.name,
        "layers": point.layers,
    }
    if variant in ("triton", "mosaic_gpu", "xla", "reference"):
        about["implementation"] = beside_attention(variant) if point.operation in ("write", "copy") else variant
        about["tuning"] = _tuning(point, arrays, variant)
    return about


def _tuning(point: Point, arrays: Arrays, implementation: str) -> str | None:
    """Where the sizes of an attention kernel come from: "measured", or None for its own rules."""
    if point.operation not in ("decode", "ragged"):
        return None
    entry = entry_for(_KERNELS[point.operation], implementation, arrays.q, arrays.kv)
    return None if entry is None else "measured"


def _row(point: Point, arrays: Arrays, name: str, timing: Timing, copy: Timing | None) -> dict[str, Any]:
    seconds = timing.seconds / point.layers
    row = _about(point, arrays, name) | {
        "seconds": seconds,
        "seconds_low": timing.low / point.layers,
        "seconds_high": timing.high / point.layers,
        "repeats": timing.repeats,
        "bytes": point.bytes_moved,
        "gb_per_second": point.bytes_moved / seconds / 1e9,
    }
    if copy is not None:
        copy_seconds = copy.seconds / point.layers
        row["copy_gb_per_second"] = point.bytes_moved / copy_seconds / 1e9
        row["share_of_copy"] = copy_seconds / seconds
    return row


def _compare(rows: list[dict[str, Any]]) -> None:
    """Adds `times_gather` (how many times as fast as gathering) and `paging_overhead` (over the best without pages)."""
    seconds = {row["variant"]: row["seconds"] for row in rows if "seconds" in row}
    without_pages = [seconds[name] for name in CONTIGUOUS if name in seconds]
    for row in rows:
        if "implementation" not in row or "seconds" not in row:
            continue
        if GATHER in seconds:
            row["times_gather"] = seconds[GATHER] / row["seconds"]
        if without_pages:
            row["paging_overhead"] = row["seconds"] / min(without_pages) - 1
