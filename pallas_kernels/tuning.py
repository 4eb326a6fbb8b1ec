"""Sizes that trade speed for nothing else, and the table of those that were measured to be best (`tuned.json`).

A result depends on sizes only in its rounding. A file that is not wholly right is refused, with its entry and field.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from jaxtyping import Array, Float

from pallas_kernels.dispatch import IMPLEMENTATIONS, target_device
from pallas_kernels.kv_pages import KVPages
from pallas_kernels.scores import AttentionCall
from pallas_kernels.support import POOL_DTYPES

TABLE = Path(__file__).with_name("tuned.json")
FORMAT = 2
MOST_SPLITS = 32
_PROGRAMS_TO_FILL_A_GPU = 512
_TOKENS_WORTH_A_SPLIT = 256


@dataclass(frozen=True)
class DecodeTuning:
    """Sizes of a decode kernel; None in a field means the implementation's own choice.

    `block_tokens`: tokens read at a time. `splits`: parts of a context, merged at the end (GPU kernels).
    `num_warps`: of a Triton program. `num_stages`: blocks in flight, of a Triton program or a Mosaic ring.
    """

    block_tokens: int | None = None
    splits: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None


@dataclass(frozen=True)
class RaggedTuning:
    """Sizes of a ragged kernel; None in a field means the implementation's own choice.

    `block_queries`: queries of one row handled together. The other fields are those of DecodeTuning.
    """

    block_queries: int | None = None
    block_tokens: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None


RECORDS: dict[str, type[Any]] = {"paged_attention": DecodeTuning, "ragged_paged_attention": RaggedTuning}


def default_splits(num_programs: int, longest: int) -> int:
    """A power of two: enough programs to fill a large GPU four times over, but at least 256 tokens per split."""
    wanted = min(-(-_PROGRAMS_TO_FILL_A_GPU // num_programs), MOST_SPLITS)
    return min(_power_of_two(wanted), most_useful_splits(longest))


def most_useful_splits(longest: int) -> int:
    """A power of two: as many splits as a context of `longest` tokens has any use for."""
    return _power_of_two(min(-(-longest // _TOKENS_WORTH_A_SPLIT), MOST_SPLITS))


def _power_of_two(count: int) -> int:
    return 1 << max(0, (count - 1).bit_length())


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedEntry:
    """Sizes that were the fastest for one shape on one kind of device.

    `dtype` is the queries', `kv_dtype` the pool's, `rows` how many queries a call packs. `tuning` is a record of the
    operation; `seconds` is what one call took, and `jax` with which version.
    """

    operation: str
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
    seconds: float
    jax: str

    @property
    def key(self) -> tuple[str | int, ...]:
        """What it is for, without the number of rows."""
        return (self.operation, self.device_kind, self.implementation, self.dtype, self.kv_dtype, self.num_heads,
                self.num_kv_heads, self.head_dim, self.page_size)  # fmt: skip


@cache
def table() -> tuple[TunedEntry, ...]:
    """The package's table. Raises ValueError if the file was spoilt."""
    return read_table(TABLE)


def entry_for(operation: str, implementation: str, q: Float[Array, "T N H"], kv: KVPages) -> TunedEntry | None:
    """The entry that a call without a tuning uses on the device traced for; None if there is none.

    It is the one for the fewest rows that are not below those of `q`, else for the most.
    """
    key = (operation, target_device().device_kind, implementation, q.dtype.name, kv.k.dtype.name, q.shape[1],
           kv.num_kv_heads, kv.head_dim, kv.page_size)  # fmt: skip
    found = sorted((entry for entry in table() if entry.key == key), key=lambda entry: entry.rows)
    return next((entry for entry in found if entry.rows >= q.shape[0]), found[-1] if found else None)


def tuning_for(operation: str, implementation: str, call: AttentionCall) -> Any:
    """The sizes that a call without a tuning uses; None: the implementation's own rules."""
    entry = entry_for(operation, implementation, call.q, call.kv)
    tuning = entry and entry.tuning
    if not isinstance(tuning, DecodeTuning) or tuning.splits is None:
        return tuning
    # Timed with long contexts: a table that cannot hold as many tokens has no use for as many splits.
    longest = call.block_tables.shape[1] * call.kv.page_size
    return replace(tuning, splits=min(tuning.splits, most_useful_splits(longest)))


def read_table(path: Path) -> tuple[TunedEntry, ...]:
    """The entries of a file. Raises ValueError naming what is wrong in it."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: no table of sizes can be read there: {error}") from None
    if not isinstance(document, dict) or set(document) != {"format", "entries"}:
        raise ValueError(f"{path}: must be an object of format and entries")
    if document["format"] != FORMAT or not isinstance(document["entries"], list):
        raise ValueError(
            f"{path}: format={document['format']!r} must be {FORMAT}, and entries must be a list: write it again with "
            "python -m jpaged.gpu_check --write-tuned"
        )
    entries = tuple(parse_entry(entry, f"{path}, entry {i}") for i, entry in enumerate(document["entries"]))
    places = [(entry.key, entry.rows) for entry in entries]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise ValueError(f"{path}, entry {i}: is for the same shape and rows as entry {places.index(place)}")
    return entries


def write_table(path: Path, entries: Iterable[TunedEntry]) -> None:
    """A file that `read_table` reads, one entry per line, so that a change of it can be read.

    Of several entries for the same shape and rows, the last one stays.
    """
    latest = {(entry.key, entry.rows): entry for entry in entries}
    lines = ",\n".join(f"  {json.dumps(plain_entry(latest[place]), allow_nan=False)}" for place in sorted(latest))
    path.write_text(f'{{"format": {FORMAT}, "entries": [\n{lines}\n]}}\n')


def plain_entry(entry: TunedEntry) -> dict[str, Any]:
    """The entry as JSON has it: what `parse_entry` reads."""
    return asdict(entry) | {"tuning": plain_tuning(entry.tuning)}


def plain_tuning(tuning: Any) -> dict[str, int]:
    """The fields of a tuning record that are set; none of None."""
    return {} if tuning is None else {name: value for name, value in asdict(tuning).items() if value is not None}


def parse_entry(plain: Any, where: str) -> TunedEntry:
    """One entry out of JSON. Raises ValueError naming the field."""
    names = {field.name for field in fields(TunedEntry)}
    if not isinstance(plain, dict):
        raise ValueError(f"{where}: must be an object, got {plain!r}")
    if wrong := names ^ set(plain):
        raise ValueError(f"{where}: these fields are missing or unknown: {', '.join(sorted(wrong))}")
    for name, expected in _EXPECTED.items():
        _require(expected, where, name, plain[name])
    if plain["num_heads"] % plain["num_kv_heads"]:
        raise ValueError(
            f"{where}: num_heads={plain['num_heads']} must be a multiple of num_kv_heads={plain['num_kv_heads']}"
        )
    record, tuning = RECORDS[plain["operation"]], plain["tuning"]
    sizes = [field.name for field in fields(record)]
    if not isinstance(tuning, dict) or not set(tuning) <= set(sizes):
        raise ValueError(f"{where}: tuning={tuning!r} must be an object of {', '.join(sizes)}")
    for name, value in tuning.items():
        _require(_COUNT, where, f"tuning.{name}", value)
    return TunedEntry(**plain | {"tuning": record(**tuning)})


_Expected = tuple[Callable[[Any], bool], str]


def _require(expected: _Expected, where: str, field: str, value: Any) -> None:
    is_right, words = expected
    if not is_right(value):
        raise ValueError(f"{where}: {field}={value!r} must be {words}")


def _one_of(choices: Iterable[str]) -> _Expected:
    names = tuple(choices)
    return (lambda value: value in names), f"one of {', '.join(names)}"


_COUNT: _Expected = (lambda value: type(value) is int and value >= 1), "an integer of at least 1"
_NAME: _Expected = (lambda value: isinstance(value, str) and value != ""), "a name"
_EXPECTED: dict[str, _Expected] = {
    "operation": _one_of(RECORDS),
    "device_kind": _NAME,
    "implementation": _one_of(IMPLEMENTATIONS),
    "dtype": _one_of(("float32", "bfloat16", "float16")),
    "kv_dtype": _one_of(POOL_DTYPES),
    **dict.fromkeys(("num_heads", "num_kv_heads", "head_dim", "page_size", "rows"), _COUNT),
    "seconds": ((lambda value: isinstance(value, float) and 0 < value < float("inf")), "a time above 0"),
    "jax": _NAME,
}
