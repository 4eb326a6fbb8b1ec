"""The section `autotune`: which sizes are best for the main shapes; and how they become the kernels' own table.

Sizes whose output differs from the default's are never best. Every time measured is in the result.
"""

import json
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax

from jpaged.bench.kernels import OPERATION_OF, try_ways
from jpaged.bench.kernels_points import Arrays, HeadShape, Point, arrays_of
from jpaged.bench.kernels_timing import Run
from jpaged.bench.kernels_variants import paged
from jpaged.gpu_check.correctness import compile_all
from jpaged.gpu_check.sections import SectionRun
from jpaged.gpu_check.summary import fastest
from pallas_kernels.numerics import LARGEST_DIFFERENCE
from pallas_kernels.support import support_of
from pallas_kernels.tuning import (
    RECORDS,
    TABLE,
    DecodeTuning,
    TunedEntry,
    parse_entry,
    plain_entry,
    plain_tuning,
    read_table,
    write_table,
)


def autotune(run: SectionRun) -> None:
    """`trials`: each shape's candidates with their times; `best`: entries for the table of sizes."""
    run.found |= {"trials": [], "best": []}
    shapes = _tiny_shapes() if run.tiny else _shapes()
    for implementation, point in run.in_time(shapes, lambda shape: _name(*shape), 4.0 if run.tiny else 12.0):
        trials = _try_all(run, implementation, point)
        run.found["trials"].append({"shape": _name(implementation, point), "candidates": trials})
        if best := fastest(trials):
            run.found["best"].append(_entry(implementation, point, best))


def _name(implementation: str, point: Point) -> str:
    return f"{implementation} {point.operation} {point.heads} batch {point.batch}"


def _shapes() -> Iterator[tuple[str, Point]]:
    llama, opt, small = HeadShape(32, 8, 128), HeadShape(40, 40, 128), HeadShape(9, 3, 64)
    common: dict[str, Any] = {"page_size": 16, "dtype": "bfloat16", "layers": 4}
    for heads, batch in product((llama, opt, small), (32, 8)):
        yield "triton", Point(operation="decode", batch=batch, context=2048, heads=heads, **common)
    for heads in (llama, opt, small):
        yield "triton", Point(operation="ragged", batch=4, context=1024, queries=128, heads=heads, **common)
    yield "mosaic_gpu", Point(operation="decode", batch=32, context=2048, heads=llama, **common)
    yield "mosaic_gpu", Point(operation="ragged", batch=4, context=1024, queries=128, heads=llama, **common)


def _tiny_shapes() -> Iterator[tuple[str, Point]]:
    small: dict[str, Any] = {"page_size": 16, "batch": 2, "context": 40, "heads": HeadShape(4, 2, 16), "layers": 1}
    yield "triton", Point(operation="decode", **small)
    yield "triton", Point(operation="ragged", queries=6, **small)


def _candidates(implementation: str, operation: str, tiny: bool) -> list[Any]:
    """Records of sizes; the first is empty: the implementation's own rules, whatever the table says."""
    names, sizes = ("block_tokens", "num_stages", "num_warps", "block_queries"), [(16,)]
    if not tiny and implementation == "mosaic_gpu":
        sizes = [(64, 2), (64, 3), (64, 4), (128, 2)]
    elif not tiny and operation == "decode":
        sizes = product((32, 64, 128), (2, 3, 5), (2, 4, 8))
    elif not tiny:
        sizes = product((32, 64, 128), (2, 3), (4, 8), (16, 32, 64))
    record = RECORDS[OPERATION_OF[operation]]
    return [record(), *(record(**dict(zip(names, each, strict=False))) for each in sizes)]


def _try_all(run: SectionRun, implementation: str, point: Point) -> list[dict[str, Any]]:
    """The candidates, and for decode the best of them with other numbers of splits."""
    arrays = arrays_of(point)
    candidates = _candidates(implementation, point.operation, run.tiny)
    trials = _try(run, implementation, point, arrays, candidates)
    best = fastest(trials)
    if point.operation == "decode" and best and not run.tiny and run.left > 5:
        again = [DecodeTuning(**best["tuning"] | {"splits": splits}) for splits in (1, 2, 4, 8, 16)]
        trials += _try(run, implementation, point, arrays, again)
    return trials


def _try(
    run: SectionRun, implementation: str, point: Point, arrays: Arrays, candidates: list[Any]
) -> list[dict[str, Any]]:
    how = {"implementation": implementation, "interpret": run.tiny}
    calls = [(paged(point, tuning=tuning, **how), (arrays,)) for tuning in candidates]
    programs = {str(i): program for i, program in enumerate(compile_all(calls))}

    def ready(program: Any) -> Run:
        if isinstance(program, Exception):
            raise program
        return partial(program, arrays)

    found = try_ways(
        {name: partial(ready, program) for name, program in programs.items()},
        next((name for name, program in programs.items() if not isinstance(program, Exception)), "0"),
        list(programs), LARGEST_DIFFERENCE[point.dtype],
        parts=point.layers, repeats=5, sample_seconds=2e-3, budget=max(1.0, run.left / 4),
    )  # fmt: skip
    return [{"tuning": plain_tuning(tuning)} | way for tuning, way in zip(candidates, found.values(), strict=True)]


def _entry(implementation: str, point: Point, best: dict[str, Any]) -> dict[str, Any]:
    operation = OPERATION_OF[point.operation]
    return plain_entry(TunedEntry(
        operation=operation, device_kind=jax.devices()[0].device_kind, implementation=implementation,
        dtype=point.dtype, kv_dtype=point.pool_dtype.name, num_heads=point.heads.num_heads,
        num_kv_heads=point.heads.num_kv_heads, head_dim=point.heads.head_dim, page_size=point.page_size,
        rows=point.batch * point.queries, tuning=RECORDS[operation](**best["tuning"]), seconds=best["seconds"],
        jax=jax.__version__,
    ))  # fmt: skip


def write_tuned(result: Path, table: Path = TABLE) -> int:
    """Put the best sizes in the JSON of a run on a GPU into the kernels' table; returns how many there were.

    An entry replaces the one for the same shape and rows. Raises ValueError, before anything is written, if the file is
    no result of a run, was a rehearsal, failed its correctness checks or has an entry that is not right.
    """
    best = _read_result(result)["sections"].get("autotune", {}).get("result", {}).get("best")
    if not isinstance(best, list) or not best:
        raise ValueError(f"{result}: has no sizes; its section autotune did not get so far")
    entries = []
    for i, plain in enumerate(best):
        entry = parse_entry(plain, f"{result}, entry {i}")
        support = support_of(entry.operation, entry.implementation)
        if extra := set(plain_tuning(entry.tuning)) - set(support.tuning if support else ()):
            names = ", ".join(sorted(extra))
            raise ValueError(f"{result}, entry {i}: implementation={entry.implementation!r} has no {names} to tune")
        entries.append(entry)
    write_table(table, [*read_table(table), *entries])
    return len(entries)


def _read_result(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: no result of a run can be read there: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("sections"), dict):
        raise ValueError(f"{path}: is no result of python -m jpaged.gpu_check; give the JSON file that it wrote")
    if document.get("tiny") is not False:
        raise ValueError(f"{path}: is a rehearsal, whose times mean nothing; give the result of a run on a GPU")
    correctness = document["sections"].get("correctness", {})
    if correctness.get("status") != "done" or correctness.get("result", {}).get("num_wrong") != 0:
        raise ValueError(f"{path}: its kernels were not all found right; sizes of a wrong kernel are not worth having")
    return document
