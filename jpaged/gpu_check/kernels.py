"""The section `kernels`: the kernels alone, as `jpaged bench kernels` measures them; what matters most comes first."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from jpaged.bench.kernels import facts, fig18a_points, measure_point
from jpaged.bench.kernels_points import HeadShape, Point
from jpaged.gpu_check.sections import SectionRun


def bench(run: SectionRun) -> None:
    """`rows` as `measure_point` gives them."""
    run.found |= facts() | {"rows": []}
    names = ("triton", "xla") if run.tiny else None
    for point in run.in_time(_tiny_points() if run.tiny else _points(), str, needed=2.0):
        run.found["rows"] += measure_point(point, names, repeats=7, interpret=run.tiny, budget=2.0)


def _points() -> Iterator[Point]:
    llama = HeadShape(32, 8, 128)
    common: dict[str, Any] = {"heads": llama, "dtype": "bfloat16", "layers": 8}
    yield from fig18a_points("float16", layers=8)
    for batch, context in ((32, 2048), (1, 2048), (8, 4096), (128, 1024)):
        yield Point(operation="decode", page_size=16, batch=batch, context=context, **common)
    for size in (8, 32, 128, 1):
        yield Point(operation="decode", page_size=size, batch=32, context=2048, **common)
    for kv in ("int8", "fp8_e4m3"):
        yield Point(operation="decode", page_size=16, batch=32, context=2048, kv_dtype=kv, **common)
    yield Point(operation="ragged", page_size=16, batch=4, context=1024, queries=128, **common)
    for operation, kv in product(("write", "copy"), ("auto", "int8")):
        yield Point(operation=operation, page_size=16, batch=64, context=256, kv_dtype=kv, **common)


def _tiny_points() -> Iterator[Point]:
    small: dict[str, Any] = {"page_size": 4, "batch": 2, "context": 12, "heads": HeadShape(4, 2, 16)}
    yield Point(operation="decode", **small)
    yield Point(operation="ragged", queries=3, **small)
    yield Point(operation="write", kv_dtype="int8", **small)
    yield Point(operation="copy", **small)
