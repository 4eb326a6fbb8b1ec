"""The header of a GGUF file: metadata and the list of tensors.

Versions 2 and 3, little-endian. A damaged file is a ValueError of one line. Not read with gguf.GGUFReader: that makes
several NumPy arrays of each string of a vocabulary, 5 s for SmolLM2's (here 0.25 s, and a model's header is read three
times), and goes on reading zeros where a damaged file claims an endless array.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: `shape` with the innermost axis last (GGUF writes it first); `offset` from the file's start."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True)
class GGUFHeader:
    """What a GGUF file says before its data."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]


class _Cursor:
    def __init__(self, data: np.ndarray) -> None:
        self.data = memoryview(data)
        self.at = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def raw(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise EOFError("it ends inside its header")
        piece = bytes(self.data[self.at : self.at + size])
        self.at += size
        return piece

    def string(self) -> str:
        return self.raw(self.scalar("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        item, count = self.scalar("I"), self.scalar("Q")
        if item in _SCALARS:
            code = _SCALARS[item]
            return list(struct.unpack(f"<{count}{code}", self.raw(count * struct.calcsize("<" + code))))
        if count > len(self.data):
            raise EOFError(f"an array claims {count} items")
        return [self.value(item) for _ in range(count)]


def read_gguf_header(path: str | Path) -> GGUFHeader:
    """Metadata (plain Python values) and tensor list of a GGUF file. Raises ValueError, in one line."""
    path = Path(path)
    try:
        data = np.memmap(path, mode="r", dtype=np.uint8)
        return _read(path, _Cursor(data))
    except (OSError, ValueError, EOFError, KeyError, struct.error, OverflowError, MemoryError) as error:
        reason = f"unknown value type {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"cannot read {path} as GGUF: {reason}; the file is damaged or not fully downloaded"
        ) from error


def _read(path: Path, cursor: _Cursor) -> GGUFHeader:
    if cursor.raw(4) != b"GGUF":
        raise ValueError("it does not start with GGUF")
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ValueError(f"version {version} is not supported (2 and 3, little-endian, are)")
    num_tensors, num_pairs = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {}
    for _ in range(num_pairs):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    entries = [_tensor(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    start = math.ceil(cursor.at / alignment) * alignment
    tensors = {name: TensorEntry(name, shape, kind, start + offset) for name, shape, kind, offset in entries}
    return GGUFHeader(path, metadata, tensors)


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    dims = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
    return name, tuple(reversed(dims)), cursor.scalar("I"), cursor.scalar("Q")
