"""`jpaged bench kernels`: what its numbers mean, what it refuses, what it leaves behind."""

import csv
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

from jpaged.bench import kernels, kernels_timing, kernels_variants
from jpaged.bench.kernels_points import HeadShape, Point, arrays_of, parse_heads, points_of
from jpaged.bench.kernels_report import paper_table
from jpaged.cli.main import main

SMALL = ["--page-sizes", "4", "--batches", "2", "--contexts", "12", "--heads", "4x2x8", "--repeats", "3"]
HEADS = HeadShape(4, 2, 8)


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, ["bench", "kernels", *args])
    assert result.exit_code == code, result.output
    return result


def point(operation: Any = "decode", **fields: Any) -> Point:
    return Point(operation=operation, **{"page_size": 4, "batch": 3, "context": 10, "heads": HEADS} | fields)


def test_decode_has_every_way_and_its_numbers_agree_with_each_other():
    found = json.loads(run(*SMALL, "--json").stdout)
    rows = {row["variant"]: row for row in found["rows"]}
    assert set(rows) == {"xla", "gather", "contiguous", "contiguous, chunks", "copy"}
    assert found["implementations"]["paged_attention"] == rows["xla"]["implementation"] == "xla"
    xla = rows["xla"]
    assert 0 < xla["seconds_low"] <= xla["seconds"] <= xla["seconds_high"]
    assert xla["gb_per_second"] == pytest.approx(xla["bytes"] / xla["seconds"] / 1e9)
    assert xla["share_of_copy"] == pytest.approx(rows["copy"]["seconds"] / xla["seconds"])
    assert xla["times_gather"] == pytest.approx(rows["gather"]["seconds"] / xla["seconds"])
    without = min(rows["contiguous"]["seconds"], rows["contiguous, chunks"]["seconds"])
    assert xla["paging_overhead"] == pytest.approx(xla["seconds"] / without - 1)
    assert xla["difference"] < 2e-5


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # K and V of 3 rows of 10 tokens, queries and outputs: float32.
        (point(), 2 * 3 * 10 * 2 * 8 * 4 + 2 * 3 * 4 * 8 * 4),
        # A byte an element and a float32 a head.
        (point(kv_dtype="int8"), 2 * 3 * 10 * 2 * (8 + 4) + 2 * 3 * 4 * 8 * 4),
        (point("ragged", queries=5), 2 * 3 * 10 * 2 * 8 * 4 + 2 * 3 * 5 * 4 * 8 * 4),
        # Tokens read in bfloat16, written as int8 with scales.
        (point("write", dtype="bfloat16", kv_dtype="int8"), 3 * (2 * 2 * 8 * 2 + 2 * 2 * (8 + 4))),
        # A page a row, read and written.
        (point("copy"), 2 * 3 * 4 * 2 * 2 * 8 * 4),
    ],
)
def test_bytes_are_those_that_the_operation_cannot_do_without(given, expected):
    assert given.bytes_moved == expected


@pytest.mark.parametrize("operation", ["decode", "ragged", "write", "copy"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8_e4m3"])
def test_every_operation_runs_on_every_kind_of_pool(operation, kv_dtype):
    given = point(operation, kv_dtype=kv_dtype, queries=5 if operation == "ragged" else 1, layers=2)
    rows = kernels.measure_point(given, ["xla"], repeats=3)
    assert [row["variant"] for row in rows if "error" in row] == []
    assert {"xla", "copy"} <= {row["variant"] for row in rows}


def test_the_copy_moves_as_many_bytes_as_the_point():
    copied = kernels_variants.variants_of(given := point(layers=2), arrays_of(given), [])["copy"]()()
    assert 2 * copied.nbytes == 2 * given.bytes_moved


def test_two_layers_are_two_calls_each_on_its_own_layer():
    arrays = arrays_of(given := point(layers=2))
    other = arrays._replace(kv=arrays.kv._replace(v=arrays.kv.v.at[1].add(1.0)))
    outs = [kernels_variants.variants_of(given, a, ["xla"])["xla"]()() for a in (arrays, other)]
    np.testing.assert_allclose(np.asarray(outs[1]) - np.asarray(outs[0]), 1.0, atol=1e-5)


def test_a_kernel_with_another_output_is_an_error_and_is_not_timed(monkeypatch):
    monkeypatch.setattr(kernels_variants, "paged_attention", lambda q, *args, **how: q)
    rows = {row["variant"]: row for row in kernels.measure_point(point(), ["xla"], repeats=3)}
    assert "off that of gather" in rows["xla"]["error"]
    assert "seconds" not in rows["xla"]
    assert "seconds" in rows["contiguous"]


def test_a_kernel_that_fails_ends_with_exit_code_1_and_the_others_in_the_file(monkeypatch, tmp_path: Path):
    def fails(*args: Any, **how: Any) -> Any:
        raise RuntimeError("out of registers")

    monkeypatch.setattr(kernels_variants, "paged_attention", fails)
    result = run(*SMALL, "--json", str(tmp_path / "k.json"), code=1)
    assert "out of registers" in result.stderr
    rows = json.loads((tmp_path / "k.json").read_text())["rows"]
    assert sum("seconds" in row for row in rows) == 4


def test_what_an_implementation_does_not_have_is_told_without_failing():
    rows = json.loads(run(*SMALL, "--operations", "copy", "--page-sizes", "16", "--json").stdout)["rows"]
    assert "page_size=16" in next(row["error"] for row in rows if row["variant"] == "xla")


def test_ways_are_timed_in_turns_forwards_and_backwards():
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) or jnp.zeros(()) for name in "ABC"}
    timings = kernels_timing.alternate(runs, repeats=4, sample_seconds=0.0)
    timed = "".join(order[9:])
    assert timed == "ABCCBAABCCBA"
    assert all(
        timing.repeats == 4 and timing.seconds_low <= timing.seconds <= timing.seconds_high
        for timing in timings.values()
    )


def test_the_preset_is_the_papers_figure_and_shows_its_numbers_beside_ours():
    points = kernels.fig18a_points("float32")
    assert {(p.batch, p.context) for p in points} == {(b, t) for b in (8, 32) for t in (64, 128, 256)}
    assert {str(p.heads) for p in points} == {"40x40x128"}
    row = {"batch": 8, "context": 64, "heads": "40x40x128", "page_size": 16, "variant": "xla", "seconds": 1e-3}
    table = paper_table([row | {"paging_overhead": 0.5}])
    assert table is not None
    assert table.splitlines()[-1] == "| 8 | 64 | 16 | xla | 1000.0 | +50% | 31.46 | 21.88 | +44% |"
    assert paper_table([row | {"paging_overhead": 0.5, "context": 65}]) is None


def test_a_folder_gets_a_table_every_field_and_a_plot(tmp_path: Path):
    run(*SMALL, "--page-sizes", "4,8", "--output", str(tmp_path / "new"))
    assert (tmp_path / "new" / "kernels.png").read_bytes()[:4] == b"\x89PNG"
    rows = list(csv.DictReader((tmp_path / "new" / "kernels.csv").open()))
    assert {(row["page_size"], row["variant"]) for row in rows} >= {("4", "xla"), ("8", "xla"), ("8", "copy")}
    text = (tmp_path / "new" / "kernels.md").read_text()
    assert text.count("| decode | 4x2x8 |") == len(rows)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--page-sizes", "0"], "page_size=0: must be between 1 and"),
        (["--page-sizes", "1,,8"], "page_sizes='1,,8'"),
        (["--batches", "x"], "batches='x'"),
        (["--contexts", "-5"], "contexts='-5'"),
        (["--heads", "9x3"], "heads='9x3'"),
        (["--heads", "9x2x64"], "9 query heads do not share 2 kv heads"),
        (["--dtypes", "int8"], "dtype='int8'"),
        (["--kv-dtypes", "int4"], "kv_dtype='int4'"),
        (["--operations", "prefill"], "operation='prefill'"),
        (["--implementations", "cuda"], "implementation='cuda' does not exist"),
        (["--repeats", "2"], "'--repeats': 2 is not in the range x>=3"),
        (["--table-tokens", "8"], "table_tokens=8"),
        (["--batches", "4096", "--contexts", "1000000"], "lower one of them"),
        (["--json", "/no/such/folder/x.json"], "--json /no/such/folder/x.json"),
        (["--output", "/proc/none"], "--output /proc/none"),
        (["--preset", "fig18a"], "--batches: --preset fig18a has its own"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(flags, said):
    result = run(*SMALL, *flags, code=2)
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_writes_and_copies_are_measured_once_whatever_the_contexts():
    points = points_of(["write", "decode"], [4], [2], [8, 16], [HEADS], ["float32"], ["auto"])
    assert [(p.operation, p.context) for p in points] == [("write", 16), ("decode", 8), ("decode", 16)]


def test_tables_are_permuted_and_their_spare_columns_are_the_null_page():
    arrays = arrays_of(point(table_tokens=20))
    tables = np.asarray(arrays.block_tables)
    assert tables.shape == (3, 5)
    assert not tables[:, 3:].any()
    used = tables[:, :3].ravel().tolist()
    assert sorted(used) == list(range(1, 10)) != used


def test_head_shapes_are_read_as_they_are_shown():
    assert str(parse_heads("32x8x128")) == "32x8x128"
