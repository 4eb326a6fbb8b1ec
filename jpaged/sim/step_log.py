"""What each step did and how long it took, as columns.

Lives here: StepLog, the columns LOG_COLUMNS, and their files: CSV or JSON lines, gzipped if the name ends so.
Promises: integers all through; the same log gives the same bytes.
Must not know: who measured or simulated the steps.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from jpaged.sim.work import StepWork

# A step begins at start_ns, takes the host host_ns and then the device device_ns.
LOG_COLUMNS = ("step", "start_ns", "device_ns", "host_ns", *StepWork._fields)
# What reading a file that is no step log, or is cut short, can raise.
_MALFORMED = (OSError, EOFError, zlib.error, csv.Error, LookupError, TypeError, ValueError, RecursionError)
_SUFFIXES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz")


class StepLog:
    """Steps as they come; columns when they are asked for."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, step: int, start_ns: int, device_ns: int, host_ns: int, work: StepWork) -> None:
        """Keep a step."""
        self._rows.append((step, start_ns, device_ns, host_ns, *work))

    def columns(self) -> dict[str, list[int]]:
        """LOG_COLUMNS, a number for each step."""
        if not self._rows:
            return {name: [] for name in LOG_COLUMNS}
        return {name: list(column) for name, column in zip(LOG_COLUMNS, zip(*self._rows, strict=True), strict=True)}


def write_step_log(path: Path, columns: Mapping[str, Sequence[int]]) -> None:
    """Write columns to a file of the kind that its name says. Raises ValueError for another ending."""
    _check_suffix(path)
    names = list(columns)
    rows = zip(*columns.values(), strict=True)
    text = io.StringIO()
    if ".csv" in path.suffixes:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    else:
        text.writelines(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_step_log(path: Path) -> dict[str, list[int]]:
    """The integer columns of a file; which ones is up to the file. Raises ValueError if it is missing or malformed."""
    _check_suffix(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist; give the path of a step log")
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        rows = _csv_rows(text) if ".csv" in path.suffixes else [json.loads(line) for line in text.splitlines()]
        names = list(rows[0]) if rows else []
        return {name: [_integer(row[name]) for row in rows] for name in names}
    except _MALFORMED as error:
        raise ValueError(f"{path} is not a step log of integers ({error!r}); write it with write_step_log") from error


def _csv_rows(text: str) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text))
    rows = list(reader)
    # DictReader fills a short row with None, which is no integer, and hangs a long one's rest on the key None.
    if any(None in row for row in rows):
        raise ValueError("a row has more fields than the header")
    return rows


def _integer(value: object) -> int:
    number = int(value) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 63:
        raise ValueError(f"{value!r} is not an integer of at least 0 that fits 64 bits")
    return number


def _check_suffix(path: Path) -> None:
    if not path.name.endswith(_SUFFIXES):
        raise ValueError(f"{path}: the name must end in one of {', '.join(_SUFFIXES)}")
