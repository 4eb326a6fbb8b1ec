"""The folder of a run: written with DONE last, looked into, and compared with another."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.config import Config
from experiments.files import dump_yaml, to_plain
from experiments.kinds import Outcome, Summary
from experiments.provenance import provenance, sha256_of

# What a run leaves whatever its kind; the two of these that are no part of what is compared.
_ALWAYS = ("config.yaml", "summary.json", "provenance.json")
_NOT_COMPARED = ("provenance.json", "timing.json")


def record(folder: Path, config: Config, outcome: Outcome, timing: Mapping[str, Any]) -> None:
    """Write everything about a run into `folder`, in place of what is there."""
    plain = to_plain(config)
    # The same point may be asked for by several questions: provenance.json has this one's.
    del plain["question"]
    files: dict[str, bytes] = {
        "config.yaml": dump_yaml(plain).encode(),
        "summary.json": _json(outcome.summary),
        **outcome.files,
        "provenance.json": _json(provenance(config, outcome.facts)),
        "timing.json": _json(dict(timing)),
    }
    digests = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    _replace_folder(folder, {**files, "DONE": digests.encode()})


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
        raise _damaged(path, f"is no JSON ({error})") from None
    if not isinstance(summary, dict) or not summary:
        raise _damaged(path, "holds no summary")
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
    missing = [name for name in _ALWAYS if name not in digests]
    if missing:
        raise _damaged(path, f"is damaged: it does not name {missing[0]}")
    return digests


def _check_file(path: Path, digest: str) -> None:
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from None
    if found != digest:
        raise _damaged(path, "is damaged: its SHA-256 is not the one in DONE")


def _damaged(path: Path, how: str) -> ValueError:
    return ValueError(f"{path}: {how}; remove the folder and run its config again")


def compare_runs(
    recorded: Path, again: Path, names: Sequence[str] | None = None, measured: Sequence[str] = ()
) -> list[str]:
    """How two whole runs differ, in lines for people; none if the files `names` (None: all) have the same bytes.

    Numbers of the summary that are `measured` may differ.
    """
    lines: list[str] = []
    for name in names or [name for name in _recorded_digests(recorded) if name not in _NOT_COMPARED]:
        if sha256_of(recorded / name) == sha256_of(again / name):
            continue
        told: list[str] = []
        if name == "summary.json":
            old, new = read_summary(recorded), read_summary(again)
            both = [key for key in dict.fromkeys([*old, *new]) if key not in measured]
            told = [f"  {k}: {old.get(k)} was recorded, {new.get(k)} came" for k in both if old.get(k) != new.get(k)]
        if told or name != "summary.json":
            lines += [f"{name} differs", *told]
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


def _json(facts: Any) -> bytes:
    return (json.dumps(facts, indent=1, allow_nan=False) + "\n").encode()
