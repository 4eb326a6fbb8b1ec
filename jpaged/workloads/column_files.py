"""Columns in files: CSV or JSON lines, gzipped if the name ends so.

The same columns give the same bytes; what cannot be read is refused by file and line.
"""

import csv
import gzip
import io
import json
import re
import reprlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

_INTEGER = re.compile(r"-?[0-9]{1,19}")
Row = list[tuple[str, Any]]
CheckNames = Callable[[list[str], str], None]


class JsonNumber(str):
    """A number of a JSON file as it is written there, judged with its field."""


def csv_bytes(columns: Mapping[str, Iterable[Any]]) -> bytes:
    """The columns as CSV, a line for their names first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def write_csv(path: Path, columns: Mapping[str, Iterable[Any]]) -> None:
    """Write columns as CSV, gzipped if `path` ends with .gz."""
    data = csv_bytes(columns)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_rows(path: Path, check_names: CheckNames) -> Iterator[tuple[int, str, Row]]:
    """Line, place for an error, and (name, value) pairs of each row of a file (.csv or .jsonl, or either with .gz).

    Values of CSV are text without spaces around it, numbers of JSON are JsonNumbers. `check_names` gets the names of
    the header, or of each JSON object, and the place. Raises ValueError for what is no such file.
    """
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            read = _json_rows if ".jsonl" in path.suffixes else _csv_rows
            yield from ((line, f"{path}, line {line}", row) for line, row in read(path, file, check_names))
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}; check the path and the file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: is not text in UTF-8: {error}; save it as CSV or JSON lines") from None


def read_integers(path: Path) -> dict[str, list[int]]:
    """The columns of a file of integers of at least 0; which ones is up to the file. Raises ValueError."""
    columns: dict[str, list[int]] = {}
    for _, where, row in read_rows(path, check_twice):
        for name, value in row:
            number = integer(name, value, where)
            if not 0 <= number < 1 << 63:
                raise ValueError(f"{where}: {name}={number}: must be at least 0 and fit 64 bits")
            columns.setdefault(name, []).append(number)
    return columns


def integer(name: str, value: Any, where: str) -> int:
    """The integer that a value of `read_rows` is. Raises ValueError."""
    if not isinstance(value, str) or not _INTEGER.fullmatch(value):
        raise ValueError(f"{where}: {name}={reprlib.repr(value)}: must be an integer")
    return int(value)


def check_twice(names: list[str], where: str) -> None:
    """Raise ValueError if a name is there twice."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{where}: column {name} is there twice; leave one out")


def _csv_rows(path: Path, file: TextIO, check_names: CheckNames) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(file)
    names = [name.strip() for name in next(reader, [])]
    check_names(names, f"{path}, line 1")
    for values in reader:
        if not values:
            continue
        if len(values) != len(names):
            raise ValueError(
                f"{path}, line {reader.line_num}: has {len(values)} values for {len(names)} columns; give one each"
            )
        yield reader.line_num, [(name, value.strip()) for name, value in zip(names, values, strict=True)]


def _json_rows(path: Path, file: TextIO, check_names: CheckNames) -> Iterator[tuple[int, Row]]:
    number: Any = {"parse_float": JsonNumber, "parse_int": JsonNumber, "parse_constant": JsonNumber}
    first: set[str] | None = None
    for line, text in enumerate(file, 1):
        where = f"{path}, line {line}"
        if not text.strip():
            continue
        try:
            pairs = json.loads(text, object_pairs_hook=lambda pairs: pairs, **number)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: is no JSON object: {error}; write one object per line") from None
        if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
            raise ValueError(f"{where}: is no JSON object; write one object per line")
        names = [name for name, _ in pairs]
        check_names(names, where)
        first = first or set(names)
        if set(names) != first:
            raise ValueError(
                f"{where}: has the fields {', '.join(names)}, lines before {', '.join(first)}; give all the same"
            )
        for name, value in pairs:
            if not all(isinstance(part, JsonNumber) for part in (value if isinstance(value, list) else [value])):
                raise ValueError(f"{where}: {name}={reprlib.repr(value)}: must be a number or a list of integers")
        yield line, pairs
