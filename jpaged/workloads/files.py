"""Workloads in files: CSV or JSON lines, plain or gzipped.

What is saved is loaded with the same digest; what is not understood is refused by file, line and field.

Columns: prompt_tokens, output_tokens; optional arrival_s or arrival_ns, hash_ids (with prefix_unit: the tokens of a
block; in CSV the ids are separated by spaces), session and turn, shared_prefix_tokens. prefix_unit and
shared_prefix_tokens are of the whole file, so each row says the same.
"""

import re
import reprlib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from jpaged.workloads.column_files import JsonNumber, check_twice, integer, read_rows, write_csv
from jpaged.workloads.workload import SECOND, RowError, Workload

REQUIRED = ("prompt_tokens", "output_tokens")
OF_FILE = ("prefix_unit", "shared_prefix_tokens")
COLUMNS = ("arrival_s", "arrival_ns", *REQUIRED, "hash_ids", "session", "turn", *OF_FILE)
_DECIMAL = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")


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
    write_csv(Path(path), columns)


def _columns(path: Path) -> tuple[list[int], dict[str, Any]]:
    """The line of each row, and the columns of the file as tuples."""
    lines, rows = list[int](), list[dict[str, Any]]()
    for line, where, row in read_rows(path, _check_names):
        lines.append(line)
        rows.append({name: _value(name, value, where) for name, value in row})
    if not rows:
        raise ValueError(f"{path}: has no requests; add a line with {' and '.join(REQUIRED)}")
    for field in OF_FILE:
        for line, row in zip(lines, rows, strict=True):
            if row.get(field) != rows[0].get(field):
                raise ValueError(
                    f"{path}, line {line}: {field}={row[field]}: line {lines[0]} says {rows[0][field]}; give one"
                )
    return lines, {name: tuple(row[name] for row in rows) for name in rows[0]}


def _check_names(names: list[str], where: str) -> None:
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"{where}: column {reprlib.repr(name)} is unknown; the columns are {', '.join(COLUMNS)}")
    check_twice(names, where)
    for name in REQUIRED:
        if name not in names:
            raise ValueError(f"{where}: column {name} is missing; the file needs {' and '.join(REQUIRED)}")
    if {"arrival_s", "arrival_ns"} <= set(names):
        raise ValueError(f"{where}: columns arrival_s and arrival_ns are both there; leave one out")
    if ("session" in names) != ("turn" in names):
        raise ValueError(f"{where}: columns session and turn go together; add the other or leave it out")


def _value(name: str, value: Any, where: str) -> Any:
    if name == "hash_ids":
        if isinstance(value, JsonNumber):
            raise ValueError(f"{where}: hash_ids={value}: must be a list of integers")
        return tuple(integer(name, item, where) for item in (value.split() if isinstance(value, str) else value))
    if name == "arrival_s":
        if not isinstance(value, str) or not _DECIMAL.fullmatch(value) or Decimal(value) < 0:
            raise ValueError(
                f"{where}: arrival_s={reprlib.repr(value)}: must be a finite number of seconds, at least 0"
            )
        return round(Decimal(value) * SECOND)
    return integer(name, value, where)
