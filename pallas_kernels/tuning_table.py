"""Tables of sizes, by what they are good for.

Lives here: TunedEntry, TuningTable, and how a table is read, checked and written (one `tuned.json` an operation).
Promises: a file that is not wholly right is refused, with the entry and the field; every entry says where it is from.
Must not know: what a size means to a kernel.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import jax

from pallas_kernels.dispatch import IMPLEMENTATIONS
from pallas_kernels.support import POOL_DTYPES

FORMAT = 1
Source = Literal["predicted", "measured"]
_QUERY_DTYPES = ("float32", "bfloat16", "float16")
_COUNTS = ("num_heads", "num_kv_heads", "head_dim", "page_size", "rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedEntry:
    """Sizes for one shape on one kind of device.

    `dtype` is the queries', `kv_dtype` the pool's, `rows` how many queries a call packs. `source`: "predicted" by the
    performance model or "measured"; then `seconds` is what one call took and `jax` with which version.
    """

    device_kind: str
    implementation: str
    dtype: str
    kv_dtype: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    rows: int
    tuning: Any
    source: Source
    seconds: float | None = None
    jax: str | None = None

    @property
    def key(self) -> tuple[str | int, ...]:
        """What it is for, without the number of rows."""
        return (self.device_kind, self.implementation, self.dtype, self.kv_dtype, self.num_heads, self.num_kv_heads,
                self.head_dim, self.page_size)  # fmt: skip


@dataclass(frozen=True)
class TuningTable:
    """The entries of one operation."""

    operation: str
    entries: tuple[TunedEntry, ...]

    def find(self, key: tuple[str | int, ...], rows: int) -> TunedEntry | None:
        """The entry for the fewest rows that are not below `rows`, else for the most; None if there is none."""
        found = self._by_key.get(key)
        if not found:
            return None
        return next((entry for entry in found if entry.rows >= rows), found[-1])

    @cached_property
    def _by_key(self) -> dict[tuple[str | int, ...], list[TunedEntry]]:
        found: dict[tuple[str | int, ...], list[TunedEntry]] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.rows):
            found.setdefault(entry.key, []).append(entry)
        return found

    def replaced(self, entries: Iterable[TunedEntry]) -> "TuningTable":
        """The table with these entries, in place of what it had for the same shapes and rows."""
        merged = {(entry.key, entry.rows): entry for entry in (*self.entries, *entries)}
        return TuningTable(self.operation, tuple(merged[place] for place in sorted(merged)))


def device_kind() -> str:
    """The kind of device that a trace made now is meant for."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (device or jax.devices()[0]).device_kind


def read_table(path: Path, operation: str, record: type[Any]) -> TuningTable:
    """The table of a file, its tunings as `record`s. Raises ValueError naming what is wrong in it."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: no table of sizes can be read there: {error}") from None
    if not isinstance(document, dict) or set(document) != {"format", "operation", "entries"}:
        raise ValueError(f"{path}: must be an object of format, operation and entries")
    if document["format"] != FORMAT or document["operation"] != operation:
        raise ValueError(
            f"{path}: format={document['format']!r}, operation={document['operation']!r}; expected {FORMAT} and "
            f"{operation!r}: write it again with python -m jpaged.gpu_check --write-tuned"
        )
    if not isinstance(document["entries"], list):
        raise ValueError(f"{path}: entries must be a list")
    entries = tuple(parse_entry(entry, record, f"{path}, entry {i}") for i, entry in enumerate(document["entries"]))
    places = [(entry.key, entry.rows) for entry in entries]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise ValueError(f"{path}, entry {i}: is for the same shape and rows as entry {places.index(place)}")
    return TuningTable(operation, entries)


def write_table(path: Path, table: TuningTable) -> None:
    """The table as a file that `read_table` reads, one entry a line, so that a change of it can be read."""
    lines = ",\n".join(f"  {json.dumps(plain_entry(entry), allow_nan=False)}" for entry in table.entries)
    head = f'{{"format": {FORMAT}, "operation": {json.dumps(table.operation)}, "entries": [\n'
    path.write_text(f"{head}{lines}\n]}}\n")


def plain_entry(entry: TunedEntry) -> dict[str, Any]:
    """The entry as JSON has it: what `parse_entry` reads."""
    plain = asdict(entry)
    plain["tuning"] = {name: value for name, value in plain["tuning"].items() if value is not None}
    return {name: value for name, value in plain.items() if value is not None}


def parse_entry(plain: Any, record: type[Any], where: str) -> TunedEntry:
    """One entry out of JSON. Raises ValueError naming the field."""
    optional = {"seconds", "jax"}
    names = {field.name for field in fields(TunedEntry)}
    if not isinstance(plain, dict):
        raise ValueError(f"{where}: must be an object, got {plain!r}")
    if wrong := (names - optional - set(plain)) | (set(plain) - names):
        raise ValueError(f"{where}: these fields are missing or unknown: {', '.join(sorted(wrong))}")
    for name in _COUNTS:
        _require(_is_count(plain[name]), where, name, plain[name], "an integer of at least 1")
    _require(plain["num_heads"] % plain["num_kv_heads"] == 0, where, "num_heads", plain["num_heads"],
             f"a multiple of num_kv_heads={plain['num_kv_heads']}")  # fmt: skip
    kind = plain["device_kind"]
    _require(isinstance(kind, str) and bool(kind), where, "device_kind", kind, "a name")
    for name, choices in (("implementation", IMPLEMENTATIONS), ("dtype", _QUERY_DTYPES), ("kv_dtype", POOL_DTYPES),
                          ("source", get_args(Source))):  # fmt: skip
        _require(plain[name] in choices, where, name, plain[name], f"one of {', '.join(choices)}")
    seconds = plain.get("seconds")
    timed = isinstance(seconds, float) and 0 < seconds < float("inf")
    _require(timed if plain["source"] == "measured" else seconds is None, where, "seconds", seconds,
             "a time above 0 where the source is measured, and absent where it is predicted")  # fmt: skip
    version = plain.get("jax")
    _require(version is None or (isinstance(version, str) and bool(version)), where, "jax", version, "a version")
    return TunedEntry(**{**plain, "tuning": _parse_tuning(plain["tuning"], record, where)})


def _parse_tuning(plain: Any, record: type[Any], where: str) -> Any:
    names = [field.name for field in fields(record)]
    _require(isinstance(plain, dict) and set(plain) <= set(names), where, "tuning", plain,
             f"an object of {', '.join(names)}")  # fmt: skip
    for name, value in plain.items():
        _require(_is_count(value), where, f"tuning.{name}", value, "an integer of at least 1")
    return record(**plain)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require(ok: bool, where: str, field: str, value: Any, expected: str) -> None:
    if not ok:
        raise ValueError(f"{where}: {field}={value!r} must be {expected}")
