"""The key-value header of a GGUF file.

Promises: plain Python values, read in milliseconds from a mapped file; tensors are never touched.
Must not know: tokenizers, models or what any key means. Standard library only.
"""

import mmap
import struct
from pathlib import Path
from typing import Any

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # version 1 counted in 32 bits; a big-endian file shows a huge version and is refused too
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def is_gguf(path: str | Path) -> bool:
    """True if the file at `path` starts with GGUF's four magic bytes."""
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_gguf_metadata(path: str | Path) -> dict[str, Any]:
    """The header of a GGUF file as a dict: numbers, bools, strings, and lists of them.

    The `gguf` package's reader builds two NumPy views for every string of the vocabulary, which takes seconds; this
    one takes tens of milliseconds. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    Raises ValueError if the file is not GGUF version 2 or 3, or ends too early.
    """
    with open(path, "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{path}: not a GGUF file (it does not start with {_MAGIC.decode()})")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read_header(data, path)
            except (struct.error, UnicodeDecodeError, EOFError) as error:
                raise ValueError(f"{path}: broken GGUF header ({error}); download the file again") from error


def _read_header(data: mmap.mmap, path: str | Path) -> dict[str, Any]:
    version, _tensors, entries = struct.unpack_from("<IQQ", data, len(_MAGIC))
    if version not in _VERSIONS:
        raise ValueError(f"{path}: GGUF version {version}; versions {_VERSIONS} in little-endian order can be read")
    pos = len(_MAGIC) + struct.calcsize("<IQQ")
    metadata: dict[str, Any] = {}
    for _ in range(entries):
        key, pos = _read_string(data, pos)
        (kind,) = struct.unpack_from("<I", data, pos)
        metadata[key], pos = _read_value(data, pos + 4, kind)
    return metadata


def _read_value(data: mmap.mmap, pos: int, kind: int) -> tuple[Any, int]:
    """One value of GGUF type `kind` at byte `pos`, and the byte after it."""
    if kind in _SCALARS:
        (value,) = struct.unpack_from("<" + _SCALARS[kind], data, pos)
        return value, pos + struct.calcsize(_SCALARS[kind])
    if kind == _STRING:
        return _read_string(data, pos)
    if kind != _ARRAY:
        raise EOFError(f"unknown value type {kind} at byte {pos}")
    element, count = struct.unpack_from("<IQ", data, pos)
    pos += struct.calcsize("<IQ")
    if element in _SCALARS:
        if count * struct.calcsize(_SCALARS[element]) > len(data) - pos:
            raise EOFError(f"an array of {count} numbers at byte {pos} runs past the end")
        layout = f"<{count}{_SCALARS[element]}"
        return list(struct.unpack_from(layout, data, pos)), pos + struct.calcsize(layout)
    values = []
    for _ in range(count):
        value, pos = _read_value(data, pos, element)
        values.append(value)
    return values, pos


def _read_string(data: mmap.mmap, pos: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, pos)
    pos += 8
    if pos + length > len(data):
        raise EOFError(f"a string of {length} bytes at byte {pos} runs past the end")
    return data[pos : pos + length].decode("utf-8"), pos + length
