"""The tables of sizes that the kernels ship with.

Lives here: what the performance model predicts, and how the best sizes of a run become entries.
Promises: a measured entry replaces the predicted one of its shape and rows, and no other; nothing is half written.
Must not know: how sizes are timed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from pallas_kernels.tuning_table import TunedEntry, TuningTable, parse_entry, read_table, write_table

from pallas_kernels.paged_attention import DecodeTuning
from pallas_kernels.paged_attention import triton as decode_triton
from pallas_kernels.paged_attention import tuned as decode
from pallas_kernels.ragged_paged_attention import RaggedTuning
from pallas_kernels.ragged_paged_attention import triton as ragged_triton
from pallas_kernels.ragged_paged_attention import tuned as ragged
from pallas_kernels.support import supports_of

DEVICE_KINDS = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200")
# SmolLM2-135M, OPT-13B and LLaMA-13B, LLaMA-7B, LLaMA-3-8B.
HEAD_SHAPES = ((9, 3, 64), (40, 40, 128), (32, 32, 128), (32, 8, 128))
DTYPES = ("bfloat16", "float16", "float32")
PAGE_SIZE = 16
DECODE_ROWS, RAGGED_ROWS = (8, 32), (512,)
_RECORDS: dict[str, tuple[type[Any], Path]] = {
    "paged_attention": (DecodeTuning, decode.TABLE),
    "ragged_paged_attention": (RaggedTuning, ragged.TABLE),
}


def predicted(operation: str) -> TuningTable:
    """What the performance model says for the main shapes: the rules that the Triton kernels follow by themselves."""
    return TuningTable(operation, ()).replaced(_predictions(operation))


def _predictions(operation: str) -> Iterator[TunedEntry]:
    for kind in DEVICE_KINDS:
        for num_heads, num_kv_heads, head_dim in HEAD_SHAPES:
            for dtype in DTYPES:
                if operation == "paged_attention":
                    tuning, rows = decode_triton.own_tuning(jnp.dtype(dtype)), DECODE_ROWS
                else:
                    group = num_heads // num_kv_heads
                    tuning, rows = ragged_triton.own_tuning(group, head_dim, jnp.dtype(dtype)), RAGGED_ROWS
                for count in rows:
                    yield TunedEntry(
                        device_kind=kind, implementation="triton", dtype=dtype, kv_dtype=dtype, num_heads=num_heads,
                        num_kv_heads=num_kv_heads, head_dim=head_dim, page_size=PAGE_SIZE, rows=count, tuning=tuning,
                        source="predicted",
                    )  # fmt: skip


def write_tuned(result: Path, targets: dict[str, Path] | None = None) -> dict[str, int]:
    """How many entries each operation gained from the JSON of a run on a GPU.

    `targets`: the table of each operation; None: the package's own. Raises ValueError, before anything is written,
    if the file is no result of a run, was a rehearsal, failed its correctness checks or has an entry that is not right.
    """
    document = _read_result(result)
    targets = targets or {operation: path for operation, (_, path) in _RECORDS.items()}
    best = document["sections"].get("autotune", {}).get("result", {}).get("best")
    if not isinstance(best, dict) or not any(best.values()):
        raise ValueError(f"{result}: has no sizes; its section autotune did not get so far")
    if unknown := set(best) - set(targets):
        raise ValueError(f"{result}: sizes of {', '.join(sorted(unknown))}; there are tables of {', '.join(targets)}")
    tables: dict[str, TuningTable] = {}
    for operation, plain in best.items():
        record, _ = _RECORDS[operation]
        entries = [_measured(entry, operation, record, f"{result}, {operation}, entry {i}")
                   for i, entry in enumerate(plain)]  # fmt: skip
        tables[operation] = read_table(targets[operation], operation, record).replaced(entries)
    for operation, table in tables.items():
        write_table(targets[operation], table)
    return {operation: len(plain) for operation, plain in best.items()}


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


def _measured(plain: Any, operation: str, record: type[Any], where: str) -> TunedEntry:
    entry = parse_entry(plain, record, where)
    if entry.source != "measured":
        raise ValueError(f"{where}: source={entry.source!r} must be 'measured'")
    allowed = {name for support in supports_of(operation, entry.implementation).values() for name in support.tuning}
    if given := set(plain["tuning"]) - allowed:
        raise ValueError(f"{where}: implementation={entry.implementation!r} has no {', '.join(sorted(given))} to tune")
    return entry


def write_predicted() -> None:
    """The package's tables, as they are before any run."""
    for operation, (_, path) in _RECORDS.items():
        write_table(path, predicted(operation))
