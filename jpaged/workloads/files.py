"""Workloads in files: CSV or JSON lines, plain or gzipped.

Lives here: `load_workload`, `read_trace` and `save_csv`.
Promises: what is saved is loaded with the same digest; what is not understood is refused by file, line and field.
Must not know: which files there are.

Columns: prompt_tokens, output_tokens; optional arrival_s or arrival_ns, hash_ids (with prefix_unit: the tokens of a
block; in CSV the ids are separated by spaces), session and turn, shared_prefix_tokens. prefix_unit and
shared_prefix_tokens are of the whole file, so each row says the same.
"""

import csv
import gzip
import io
import json
import re
import reprlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

from jpaged.workloads.workload import SECOND, RowError, Workload

REQUIRED = ("prompt_tokens", "output_tokens")
OF_FILE = ("prefix_unit", "shared_prefix_tokens")
COLUMNS = ("arrival_s", "arrival_ns", *REQUIRED, "hash_ids", "session", "turn", *OF_FILE)
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")


class _Number(str):
    """A number of a JSON file as it is written there, judged with its field."""


@dataclass(frozen=True, slots=True)
class TraceRows:
    """What a file holds. Without arrivals of its own, `workload` has all of them at 0."""

    workload: Workload
    has_arrivals: bool


def load_workload(path: Path | str, *, prefix_unit: int | None = None) -> Workload:
    """The workload in a file; one without arrivals arrives all at once. Raises ValueError as `read_trace` does."""
    return read_trace(path, prefix_unit=prefix_unit).workload


def read_trace(path: Path | str, *, prefix_unit: int | None = None) -> TraceRows:
    """What the file at `path` holds (.csv or .jsonl, or either with .gz). Seconds are rounded to nanoseconds.

    `prefix_unit` is needed if the file has hash_ids and does not say of how many tokens. Raises ValueError.
    """
    path = Path(path)
    lines, columns = _columns(path)
    given = columns.pop("prefix_unit", None)
    if given is not None and prefix_unit is not None and set(given) != {prefix_unit}:
        raise ValueError(f"prefix_unit={prefix_unit}: {path} says {given[0]}; leave one of them out")
    seconds = columns.pop("arrival_s", None)
    arrivals = columns.pop("arrival_ns", seconds)
    hash_ids = columns.pop("hash_ids", None)
    if hash_ids is not None and given is None and prefix_unit is None:
        raise ValueError(f"{path}: has hash_ids but not of how many tokens each; give prefix_unit (Mooncake: 512)")
    if hash_ids is None and (given is not None or prefix_unit is not None):
        raise ValueError(f"{path}: has a prefix_unit but no hash_ids to go with it; leave prefix_unit out")
    try:
        workload = Workload(
            arrival_ns=arrivals or (0,) * len(lines),
            prefix_ids=hash_ids,
            prefix_unit=given[0] if given else prefix_unit,
            shared_prefix_tokens=columns.pop("shared_prefix_tokens", (0,))[0],
            name=path.name.split(".")[0],
            source=f"file {path.name}",
            **columns,
        )
    except RowError as error:
        raise ValueError(f"{path}, line {lines[error.row]}: {error.text}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return TraceRows(workload, arrivals is not None)


def save_csv(workload: Workload, path: Path | str) -> None:
    """Write the workload, gzipped if `path` ends with .gz: the same bytes each time. Loading it gives equal columns."""
    path = Path(path)
    columns: dict[str, Any] = {
        "arrival_ns": workload.arrival_ns,
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
    }
    if workload.prefix_ids is not None:
        columns["hash_ids"] = [" ".join(map(str, ids)) for ids in workload.prefix_ids]
        columns["prefix_unit"] = [workload.prefix_unit] * len(workload)
    if workload.session is not None:
        columns |= {"session": workload.session, "turn": workload.turn}
    if workload.shared_prefix_tokens:
        columns["shared_prefix_tokens"] = [workload.shared_prefix_tokens] * len(workload)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _columns(path: Path) -> tuple[list[int], dict[str, Any]]:
    """The line of each row, and the columns of the file as tuples."""
    lines, rows = list[int](), list[dict[str, Any]]()
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            for line, row in _json_rows(path, file) if ".jsonl" in path.suffixes else _csv_rows(path, file):
                lines.append(line)
                rows.append(row)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}; check the path and the file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: is no text in UTF-8: {error}; save it as CSV or JSON lines") from None
    if not rows:
        raise ValueError(f"{path}: has no requests; add a line with {' and '.join(REQUIRED)}")
    for field in OF_FILE:
        for line, row in zip(lines, rows, strict=True):
            if row.get(field) != rows[0].get(field):
                raise ValueError(
                    f"{path}, line {line}: {field}={row[field]}: line {lines[0]} says {rows[0][field]}; give one"
                )
    return lines, {name: tuple(row[name] for row in rows) for name in rows[0]}


def _csv_rows(path: Path, file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(file)
    names = [name.strip() for name in next(reader, [])]
    _check_names(names, f"{path}, line 1")
    for values in reader:
        where = f"{path}, line {reader.line_num}"
        if not values:
            continue
        if len(values) != len(names):
            raise ValueError(f"{where}: has {len(values)} values for {len(names)} columns; give one each")
        yield (
            reader.line_num,
            {name: _value(name, value.strip(), where) for name, value in zip(names, values, strict=True)},
        )


def _json_rows(path: Path, file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    first: set[str] | None = None
    for line, text in enumerate(file, 1):
        where = f"{path}, line {line}"
        if not text.strip():
            continue
        try:
            pairs = json.loads(
                text, parse_float=_Number, parse_int=_Number, parse_constant=_Number, object_pairs_hook=lambda p: p
            )
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: is no JSON object: {error}; write one object a line") from None
        if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
            raise ValueError(f"{where}: is no JSON object; write one object a line")
        names = [name for name, _ in pairs]
        _check_names(names, where)
        first = first or set(names)
        if set(names) != first:
            raise ValueError(
                f"{where}: has the fields {', '.join(names)}, lines before {', '.join(first)}; give all the same"
            )
        for name, value in pairs:
            numbers = value if name == "hash_ids" and isinstance(value, list) else [value]
            if not all(isinstance(number, _Number) for number in numbers):
                what = "a list of integers" if name == "hash_ids" else "a number"
                raise ValueError(f"{where}: {name}={reprlib.repr(value)}: must be {what}")
        yield line, {name: _value(name, value, where) for name, value in pairs}


def _check_names(names: list[str], where: str) -> None:
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"{where}: column {reprlib.repr(name)} is unknown; the columns are {', '.join(COLUMNS)}")
        if names.count(name) > 1:
            raise ValueError(f"{where}: column {name} is there twice; leave one out")
    for name in REQUIRED:
        if name not in names:
            raise ValueError(f"{where}: column {name} is missing; the file needs {' and '.join(REQUIRED)}")
    if {"arrival_s", "arrival_ns"} <= set(names):
        raise ValueError(f"{where}: columns arrival_s and arrival_ns are both there; leave one out")
    if ("session" in names) != ("turn" in names):
        raise ValueError(f"{where}: columns session and turn go together; add the other or leave it out")


def _value(name: str, value: Any, where: str) -> Any:
    if name == "hash_ids":
        ids = value.split() if isinstance(value, str) else value
        if not isinstance(ids, list):
            raise ValueError(f"{where}: hash_ids={reprlib.repr(value)}: must be a list of integers")
        return tuple(_integer(name, item, where) for item in ids)
    if name == "arrival_s":
        if not isinstance(value, str) or not _DECIMAL.fullmatch(value) or Decimal(value) < 0:
            raise ValueError(
                f"{where}: arrival_s={reprlib.repr(value)}: must be a finite number of seconds, at least 0"
            )
        return round(Decimal(value) * SECOND)
    return _integer(name, value, where)


def _integer(name: str, value: Any, where: str) -> int:
    if not isinstance(value, str) or not _INTEGER.fullmatch(value):
        raise ValueError(f"{where}: {name}={reprlib.repr(value)}: must be an integer")
    return int(value)
