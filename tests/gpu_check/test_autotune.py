"""The table of measured sizes: written from a run, read strictly, and used by the calls that it is for."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jpaged.gpu_check.autotune import write_tuned
from pallas_kernels import allocate, tuning
from pallas_kernels.attend import checked_call
from pallas_kernels.paged_attention import DecodeTuning
from pallas_kernels.paged_attention import triton as decode_triton
from pallas_kernels.tuning import entry_for, plain_entry, read_table, tuning_for, write_table

ENTRY: dict[str, Any] = {
    "operation": "paged_attention", "device_kind": "NVIDIA H200", "implementation": "triton", "dtype": "bfloat16",
    "kv_dtype": "bfloat16", "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": 16, "rows": 32,
    "tuning": {"block_tokens": 128, "splits": 4, "num_warps": 8, "num_stages": 3},
    "seconds": 1e-4, "jax": "0.12.0",
}  # fmt: skip


def result(entries: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    sections = {
        "correctness": {"status": "done", "result": {"num_wrong": 0}},
        "autotune": {"status": "done", "result": {"best": entries}},
    }
    return {"tiny": False, "sections": sections} | changes


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with an entry for 8 rows and a slower one for 32."""
    path = tmp_path / "tuned.json"
    entries = [ENTRY | {"rows": 8}, ENTRY | {"tuning": {}, "seconds": 2e-4}]
    path.write_text(json.dumps({"format": 2, "entries": entries}))
    return path


def test_the_packages_table_is_right():
    assert isinstance(tuning.table(), tuple)


def test_a_table_is_read_as_it_was_written(table, tmp_path):
    entries = read_table(table)
    write_table(tmp_path / "again.json", entries)
    assert read_table(tmp_path / "again.json") == entries
    write_table(tmp_path / "none.json", ())
    assert read_table(tmp_path / "none.json") == ()


def test_a_measured_entry_takes_the_place_of_that_of_its_shape_and_rows_and_of_no_other(table, tmp_path):
    ragged = {"operation": "ragged_paged_attention", "tuning": {"block_queries": 16}, "rows": 512}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result([ENTRY, ENTRY | ragged])))
    assert write_tuned(path, table) == 2
    assert [plain_entry(entry) for entry in read_table(table)] == [ENTRY | {"rows": 8}, ENTRY, ENTRY | ragged]
    assert read_table(table)[1].tuning == DecodeTuning(128, 4, 8, 3)


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (result([ENTRY], tiny=True), "is a rehearsal"),
        ({"sections": []}, "is no result of"),
        (result([]), "has no sizes"),
        (result([ENTRY | {"operation": "write_kv"}]), "operation='write_kv' must be"),
        (result([ENTRY | {"tuning": {"block_queries": 4}}]), "tuning="),
        (result([ENTRY | {"implementation": "mosaic_gpu"}]), "no num_warps to tune"),
        (result([ENTRY, ENTRY | {"rows": 0}]), "entry 1: rows=0"),
    ],
)
def test_a_result_that_is_not_right_changes_no_table(spoilt, said, table, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(spoilt))
    before = table.read_text()
    with pytest.raises(ValueError, match=said):
        write_tuned(path, table)
    assert table.read_text() == before


def test_sizes_of_kernels_that_were_found_wrong_are_refused(table, tmp_path):
    document = result([ENTRY])
    document["sections"]["correctness"]["result"]["num_wrong"] = 1
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="not all found right"):
        write_tuned(path, table)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": True}, "rows=True"),
        ({"rows": 1.0}, "rows=1.0"),
        ({"head_dim": 0}, "head_dim=0"),
        ({"num_heads": 9}, "multiple of num_kv_heads=8"),
        ({"device_kind": ""}, "device_kind=''"),
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"kv_dtype": "int4"}, "kv_dtype='int4'"),
        ({"implementation": "cuda"}, "implementation='cuda'"),
        ({"operation": "write_kv"}, "operation='write_kv'"),
        ({"seconds": -1.0}, "seconds=-1.0"),
        ({"seconds": None}, "seconds=None"),
        ({"jax": 12}, "jax=12"),
        ({"tuning": {"splits": "4"}}, "tuning.splits='4'"),
        ({"tuning": [4]}, "tuning="),
        ({"color": "red"}, "missing or unknown: color"),
    ],
)
def test_a_spoilt_entry_is_refused_by_its_number_and_field(change, said, tmp_path):
    path = tmp_path / "t.json"
    entries = [ENTRY | {"rows": 8}, ENTRY | change]
    path.write_text(json.dumps({"format": 2, "entries": entries}))
    with pytest.raises(ValueError, match="entry 1") as error:
        read_table(path)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no table of sizes can be read"),
        ("[]", "must be an object"),
        ('{"format": 1, "operation": "paged_attention", "entries": []}', "must be an object"),
        ('{"format": 1, "entries": []}', "format=1"),
        ('{"format": 2, "entries": {}}', "must be a list"),
        (json.dumps({"format": 2, "entries": [ENTRY, ENTRY]}), "same shape and rows"),
    ],
)
def test_a_spoilt_file_is_refused(text, said, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_table(path)


@pytest.fixture
def measured_here(monkeypatch, tmp_path) -> None:
    """Two entries for the device of this machine: for 8 rows and for 32."""
    path = tmp_path / "t.json"
    here = ENTRY | {"device_kind": jax.devices()[0].device_kind}
    entries = [here, here | {"rows": 8, "tuning": {"block_tokens": 32}}]
    path.write_text(json.dumps({"format": 2, "entries": entries}))
    entries = read_table(path)
    monkeypatch.setattr(tuning, "table", lambda: entries)


@pytest.mark.parametrize(("rows", "expected"), [(1, 8), (8, 8), (9, 32), (32, 32), (100, 32)])
def test_a_call_takes_the_entry_of_the_next_larger_number_of_rows_or_the_largest(measured_here, rows, expected):
    q, kv = jnp.zeros((rows, 32, 128), jnp.bfloat16), allocate(1, 2, 16, 8, 128, jnp.bfloat16)
    entry = entry_for("paged_attention", "triton", q, kv)
    assert entry is not None
    assert entry.rows == expected


def test_other_shapes_dtypes_and_page_sizes_have_no_entry(measured_here):
    q, kv = jnp.zeros((8, 32, 128), jnp.bfloat16), allocate(1, 2, 16, 8, 128, jnp.bfloat16)
    assert entry_for("paged_attention", "triton", q, kv) is not None
    assert entry_for("paged_attention", "mosaic_gpu", q, kv) is None
    assert entry_for("paged_attention", "triton", q.astype(jnp.float16), kv) is None
    assert entry_for("paged_attention", "triton", q[:, :16], kv) is None
    assert entry_for("paged_attention", "triton", q, allocate(1, 2, 32, 8, 128, jnp.bfloat16)) is None


def test_splits_of_an_entry_are_no_more_than_a_table_has_use_for(measured_here):
    q, kv = jnp.zeros((32, 32, 128), jnp.bfloat16), allocate(1, 2, 16, 8, 128, jnp.bfloat16)
    how: dict[str, Any] = {"scale": None, "window": None, "soft_cap": None, "alibi_slopes": None}

    def splits(width: int) -> int:
        tables = jnp.zeros((32, width), jnp.int32)
        call = checked_call(q, kv, tables, jnp.ones(32, jnp.int32), None, 0, **how)
        return tuning_for("paged_attention", "triton", call).splits

    assert [splits(width) for width in (1, 32, 1024)] == [1, 2, 4]


def test_the_kernel_is_given_the_sizes_of_its_entry(measured_here, monkeypatch):
    from pallas_kernels import paged_attention

    given = []
    monkeypatch.setattr(decode_triton, "paged_attention", lambda call, tuning: given.append(tuning) or call.q)
    q, kv = jnp.zeros((32, 32, 128), jnp.bfloat16), allocate(1, 2, 16, 8, 128, jnp.bfloat16)
    arrays = (q, kv, jnp.zeros((32, 64), jnp.int32), jnp.ones(32, jnp.int32))
    paged_attention(*arrays, implementation="triton")
    paged_attention(*arrays, implementation="triton", tuning=DecodeTuning(splits=2))
    paged_attention(*arrays, implementation="triton", tuning=DecodeTuning())
    assert given == [DecodeTuning(128, 4, 8, 3), DecodeTuning(splits=2), DecodeTuning()]
