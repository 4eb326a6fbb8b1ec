"""Step logs in files of each kind."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from jpaged.workloads.column_files import write_csv


def write_log(path: Path, columns: Mapping[str, Sequence[int]]) -> None:
    """Write columns as the ending of `path` says."""
    if ".csv" in path.suffixes:
        return write_csv(path, columns)
    rows = zip(*columns.values(), strict=True)
    data = "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
