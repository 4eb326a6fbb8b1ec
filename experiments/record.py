"""The folder of a run.

Lives here: `record_point` writes one, `is_done`, `check_run` and `read_summary` look into one, `compare_runs` says how
two differ.
Promises: DONE is written last; the files of one config have the same bytes whenever it is simulated on one machine;
what is measured, and so differs, has files of its own.
Must not know: how a point is run, sweeps.
"""

import contextlib
import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.files import dump_yaml, to_plain
from experiments.point import Point
from experiments.provenance import provenance
from experiments.summary import Summary, summarize
from jpaged.sim.step_log import LOG_COLUMNS
from jpaged.workloads.column_files import csv_bytes

# Decided by the config alone, on any executor, where all requests come at once.
FACT_FILES = ("config.yaml", "requests.csv.gz", "steps.csv.gz")
# Decided by the config alone if the executor is simulated.
TIME_FILES = ("summary.json", "request_times.csv.gz", "step_times.csv.gz")
# The tokens of a real executor.
OUTPUTS_FILE = "outputs.jsonl.gz"
_TIMES = {
    "requests": ("first_scheduled_ns", "first_token_ns", "finished_ns"),
    "steps": ("start_ns", "end_ns"),
}


def record_point(folder: Path, point: Point, timing: Mapping[str, Any]) -> Summary:
    """Write everything about a point into `folder`, in place of what is there; returns its summary."""
    summary = summarize(point)
    plain = to_plain(point.config)
    # The same point may be asked for by several questions: provenance.json has this one's.
    del plain["question"]
    files: dict[str, bytes] = {
        "config.yaml": dump_yaml(plain).encode(),
        "summary.json": _json(summary),
        "requests.csv.gz": _table(_request_facts(point)),
        "request_times.csv.gz": _table(_numbered(point, _TIMES["requests"])),
        "steps.csv.gz": _table({k: v for k, v in point.steps.items() if k not in _TIMES["steps"]}),
        "step_times.csv.gz": _table(step_log(point)),
        "provenance.json": _json(provenance(point)),
        "timing.json": _json(dict(timing)),
    }
    if point.refused:
        files["refused.json"] = _json({str(number): reason for number, reason in point.refused.items()})
    if point.outputs is not None:
        files[OUTPUTS_FILE] = _outputs(point.outputs)
    digests = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    _replace_folder(folder, {**files, "DONE": digests.encode()})
    return summary


def record_error(folder: Path, text: str) -> None:
    """Leave why a point failed, in place of what an earlier try left; nothing where nothing can be written."""
    # Who calls knows the reason and tells it: a second error must not hide it, nor stop other points.
    with contextlib.suppress(OSError, ValueError):
        _replace_folder(folder, {"ERROR.txt": text.encode()})


def is_done(folder: Path) -> bool:
    """Whether the folder holds a whole run."""
    return os.path.exists(folder / "DONE")


def check_run(folder: Path) -> None:
    """Raise ValueError unless the folder holds a whole run whose files are as they were written."""
    for name, digest in _recorded_digests(folder).items():
        _check_file(folder / name, digest)


def read_summary(folder: Path) -> Summary:
    """The summary in a run folder. Raises ValueError if the run is not whole, or the summary is damaged."""
    path = folder / "summary.json"
    _check_file(path, _recorded_digests(folder)[path.name])
    try:
        summary = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: is no JSON ({error}); remove the folder and run its config again") from None
    if not isinstance(summary, dict) or not summary:
        raise ValueError(f"{path}: holds no summary; remove the folder and run its config again")
    return summary


def _recorded_digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of a run, from its DONE."""
    path = folder / "DONE"
    if not is_done(folder):
        raise ValueError(
            f"{folder}: has no DONE, so no whole run; run its config again, or give the folder of a run, such as "
            "runs/NAME/DIGEST"
        )
    try:
        rows = [line.split("  ") for line in path.read_text().splitlines()]
        digests = {name: digest for digest, name in rows}
    except (OSError, ValueError):
        digests = {}
    missing = [name for name in (*FACT_FILES, *TIME_FILES, "provenance.json") if name not in digests]
    if missing:
        raise ValueError(
            f"{path}: is damaged: it does not name {missing[0]}; remove the folder and run its config again"
        )
    return digests


def _check_file(path: Path, digest: str) -> None:
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}); remove the folder and run its config again"
        ) from None
    if found != digest:
        raise ValueError(
            f"{path}: is damaged: its SHA-256 is not the one in DONE; remove the folder and run its config again"
        )


def compare_runs(recorded: Path, again: Path, names: Sequence[str]) -> list[str]:
    """How the files `names` of two whole runs differ, in lines for people; none if they have the same bytes."""
    lines: list[str] = []
    for name in names:
        if _bytes(recorded / name) == _bytes(again / name):
            continue
        lines.append(f"{name} differs")
        if name == "summary.json":
            old, new = read_summary(recorded), read_summary(again)
            both = dict.fromkeys([*old, *new])
            lines += [f"  {k}: {old.get(k)} was recorded, {new.get(k)} came" for k in both if old.get(k) != new.get(k)]
    return lines


def _replace_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files in order, beside the folder, and put them in its place: nobody ever sees half a run."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file where a run's folder goes; remove it")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, data in files.items():
        (partial / name).write_bytes(data)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _json(facts: Any) -> bytes:
    return (json.dumps(facts, indent=1, allow_nan=False) + "\n").encode()


def _request_facts(point: Point) -> dict[str, Sequence[int] | np.ndarray]:
    facts = {name: column for name, column in point.requests.items() if name not in _TIMES["requests"]}
    refused = [int(number in point.refused) for number in range(len(point.finished))]
    return {"request": range(len(refused)), **facts, "finished": point.finished.astype(int), "refused": refused}


def _numbered(point: Point, names: Sequence[str]) -> dict[str, Sequence[int] | np.ndarray]:
    return {"request": range(len(point.finished)), **{name: point.requests[name] for name in names}}


def step_log(point: Point) -> dict[str, Sequence[int] | np.ndarray]:
    """Steps in the format of jpaged.sim.step_log, so that a run is a cost profile for `table:` and `measured:`."""
    steps = point.steps
    span = steps["end_ns"] - steps["start_ns"]
    columns = {**steps, "device_ns": span, "host_ns": np.zeros_like(span)}
    return {name: columns[name] for name in LOG_COLUMNS}


def _table(columns: Mapping[str, Sequence[int] | np.ndarray]) -> bytes:
    plain = {name: np.asarray(column).tolist() for name, column in columns.items()}
    # Level 6 takes a third of the time of the default 9 for a few per cent more bytes.
    return gzip.compress(csv_bytes(plain), compresslevel=6, mtime=0)


def _outputs(outputs: Mapping[tuple[int, int], Sequence[int]]) -> bytes:
    """A line a sequence: which request's, its index among the request's, its token ids."""
    lines = (
        json.dumps({"request": request, "index": index, "token_ids": list(ids)}) + "\n"
        for (request, index), ids in sorted(outputs.items())
    )
    return gzip.compress("".join(lines).encode(), mtime=0)
