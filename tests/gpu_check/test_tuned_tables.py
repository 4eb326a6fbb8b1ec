"""Tables of sizes: predicted until a run says better, read strictly, and taken by the calls that they are for."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from pallas_kernels.tuning_table import TuningTable, plain_entry, read_table, write_table

from jpaged.gpu_check.tuned_tables import predicted, write_tuned
from pallas_kernels import allocate
from pallas_kernels.paged_attention import DecodeTuning, tuned
from pallas_kernels.paged_attention import triton as decode_triton
from pallas_kernels.ragged_paged_attention import RaggedTuning
from pallas_kernels.ragged_paged_attention import tuned as ragged_tuned

OPERATIONS = {"paged_attention": (DecodeTuning, tuned), "ragged_paged_attention": (RaggedTuning, ragged_tuned)}
ENTRY: dict[str, Any] = {
    "device_kind": "NVIDIA H200", "implementation": "triton", "dtype": "bfloat16", "kv_dtype": "bfloat16",
    "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": 16, "rows": 32,
    "tuning": {"block_tokens": 128, "splits": 4, "num_warps": 8, "num_stages": 3},
    "source": "measured", "seconds": 1e-4, "jax": "0.12.0",
}  # fmt: skip


def result(entries: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    sections = {
        "correctness": {"status": "done", "result": {"num_wrong": 0}},
        "autotune": {"status": "done", "result": {"best": {"paged_attention": entries, "ragged_paged_attention": []}}},
    }
    return {"tiny": False, "sections": sections} | changes


@pytest.fixture
def targets(tmp_path: Path) -> dict[str, Path]:
    """Tables of their own, as the package has them before any run."""
    paths = {operation: tmp_path / f"{operation}.json" for operation in OPERATIONS}
    for operation, path in paths.items():
        write_table(path, predicted(operation))
    return paths


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_packages_predicted_entries_are_the_rules_of_the_kernels(operation):
    _, module = OPERATIONS[operation]
    rules = {(entry.key, entry.rows): entry for entry in predicted(operation).entries}
    shipped = {(entry.key, entry.rows): entry for entry in module.table().entries}
    assert set(shipped) >= set(rules)
    for place, entry in shipped.items():
        assert entry.source == "measured" or entry == rules[place]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_table_is_read_as_it_was_written(operation, targets):
    record, _ = OPERATIONS[operation]
    assert read_table(targets[operation], operation, record) == predicted(operation)


def test_a_measured_entry_takes_the_place_of_the_predicted_one_and_of_no_other(targets, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result([ENTRY])))
    assert write_tuned(path, targets) == {"paged_attention": 1, "ragged_paged_attention": 0}
    table = read_table(targets["paged_attention"], "paged_attention", DecodeTuning)
    assert len(table.entries) == len(predicted("paged_attention").entries)
    (measured,) = [entry for entry in table.entries if entry.source == "measured"]
    assert plain_entry(measured) == ENTRY
    assert measured.tuning == DecodeTuning(128, 4, 8, 3)


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (result([ENTRY], tiny=True), "is a rehearsal"),
        ({"sections": []}, "is no result of"),
        (result([]), "has no sizes"),
        (result([ENTRY | {"source": "predicted"}]), "seconds=0.0001 must be"),
        (result([ENTRY | {"tuning": {"block_queries": 4}}]), "tuning="),
        (result([ENTRY | {"implementation": "mosaic_gpu"}]), "no num_warps to tune"),
        (result([ENTRY, ENTRY | {"rows": 0}]), "entry 1: rows=0"),
    ],
)
def test_a_result_that_is_not_right_changes_no_table(spoilt, said, targets, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(spoilt))
    before = [target.read_text() for target in targets.values()]
    with pytest.raises(ValueError, match=said):
        write_tuned(path, targets)
    assert [target.read_text() for target in targets.values()] == before


def test_sizes_of_kernels_that_were_found_wrong_are_refused(targets, tmp_path):
    document = result([ENTRY])
    document["sections"]["correctness"]["result"]["num_wrong"] = 1
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="not all found right"):
        write_tuned(path, targets)


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
        ({"source": "guessed"}, "source='guessed'"),
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
    path.write_text(json.dumps({"format": 1, "operation": "paged_attention", "entries": entries}))
    with pytest.raises(ValueError, match="entry 1") as error:
        read_table(path, "paged_attention", DecodeTuning)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no table of sizes can be read"),
        ("[]", "must be an object"),
        ('{"format": 2, "operation": "paged_attention", "entries": []}', "format=2"),
        ('{"format": 1, "operation": "write_kv", "entries": []}', "operation='write_kv'"),
        ('{"format": 1, "operation": "paged_attention", "entries": {}}', "must be a list"),
        (json.dumps({"format": 1, "operation": "paged_attention", "entries": [ENTRY, ENTRY]}), "same shape and rows"),
    ],
)
def test_a_spoilt_file_is_refused(text, said, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_table(path, "paged_attention", DecodeTuning)


@pytest.fixture
def measured_here(monkeypatch, tmp_path) -> None:
    """Two entries for the device of this machine: for 8 rows and for 32."""
    path = tmp_path / "t.json"
    here = ENTRY | {"device_kind": jax.devices()[0].device_kind}
    entries = [here, here | {"rows": 8, "tuning": {"block_tokens": 32}}]
    path.write_text(json.dumps({"format": 1, "operation": "paged_attention", "entries": entries}))
    table = read_table(path, "paged_attention", DecodeTuning)
    monkeypatch.setattr(tuned, "table", lambda: table)


@pytest.mark.parametrize(("rows", "expected"), [(1, 8), (8, 8), (9, 32), (32, 32), (100, 32)])
def test_a_call_takes_the_entry_of_the_next_larger_number_of_rows_or_the_largest(measured_here, rows, expected):
    q, kv = jnp.zeros((rows, 32, 128), jnp.bfloat16), allocate(1, 2, 16, 8, 128, jnp.bfloat16)
    entry = tuned.entry_for("triton", q, kv)
    assert entry is not None
    assert (entry.rows, entry.source) == (expected, "measured")


def test_other_shapes_dtypes_and_page_sizes_have_no_entry(measured_here):
    q, kv = jnp.zeros((8, 32, 128), jnp.bfloat16), allocate(1, 2, 16, 8, 128, jnp.bfloat16)
    assert tuned.entry_for("triton", q, kv) is not None
    assert tuned.entry_for("mosaic_gpu", q, kv) is None
    assert tuned.entry_for("triton", q.astype(jnp.float16), kv) is None
    assert tuned.entry_for("triton", q[:, :16], kv) is None
    assert tuned.entry_for("triton", q, allocate(1, 2, 32, 8, 128, jnp.bfloat16)) is None


def test_splits_of_an_entry_are_no_more_than_a_table_has_use_for(measured_here):
    q, kv = jnp.zeros((32, 32, 128), jnp.bfloat16), allocate(1, 2, 16, 8, 128, jnp.bfloat16)
    assert [tuned.tuning_for("triton", q, kv, width).splits for width in (1, 32, 1024)] == [1, 2, 4]  # pyright: ignore


def test_the_kernel_is_given_the_sizes_of_its_entry(measured_here, monkeypatch):
    from pallas_kernels import paged_attention

    given = []
    monkeypatch.setattr(decode_triton, "paged_attention", lambda q, *args, tuning: given.append(tuning) or q)
    q, kv = jnp.zeros((32, 32, 128), jnp.bfloat16), allocate(1, 2, 16, 8, 128, jnp.bfloat16)
    arrays = (q, kv, jnp.zeros((32, 64), jnp.int32), jnp.ones(32, jnp.int32))
    paged_attention(*arrays, implementation="triton")
    paged_attention(*arrays, implementation="triton", tuning=DecodeTuning(splits=2))
    assert given == [DecodeTuning(128, 4, 8, 3), DecodeTuning(splits=2)]


def test_an_empty_table_finds_nothing():
    assert TuningTable("paged_attention", ()).find(("x",), 1) is None
