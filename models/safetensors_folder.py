"""Hugging Face checkpoint folders: config.json, and one safetensors file or the shards that an index names.

Tensors are read one at a time; a damaged folder is a ValueError of one line.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from models.config import ModelConfig
from models.places import canonical
from models.source import INDEX

_FLOATS = ("F64", "F32", "F16", "BF16")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ValueError if it is damaged or no object."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"cannot read {path}: expected a JSON object, got {type(document).__name__}")
    return document


def config_of_folder(folder: Path) -> ModelConfig:
    """The config that config.json describes, with the end-of-text ids of generation_config.json if there is one."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} has no config.json; a checkpoint folder needs one beside its weights")
    generation = folder / "generation_config.json"
    return ModelConfig.from_hf(
        read_json(folder / "config.json"), read_json(generation) if generation.is_file() else None
    )


class SafetensorsFolder:
    """The tensors of a checkpoint folder, by canonical name. `bytes_read` counts what `read_part` read."""

    def __init__(self, folder: Path) -> None:
        self._where: dict[str, tuple[Any, Path, str]] = {}
        self.bytes_read = 0
        for path, wanted in _listing(folder):
            file = _open(path)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if wanted is None or name in wanted:
                    self._where[canonical(name)] = (file, path, name)
            if missing := sorted((wanted or set()) - set(file.keys())):
                raise ValueError(f"{path} lacks tensors that {INDEX} places in it: {', '.join(missing)}")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, read from headers alone. Refuses a tensor that is no float, by name."""
        found = {}
        for ours, (file, path, name) in self._where.items():
            entry = file.get_slice(name)
            dtype = entry.get_dtype()
            if dtype not in _FLOATS and not ours.endswith(("masked_bias", "self_attn.bias")):
                raise ValueError(f"{path}: tensor {name} is {dtype}; only {', '.join(_FLOATS)} can be loaded")
            found[ours] = tuple(entry.get_shape())
        return found

    def read(self, name: str) -> np.ndarray:
        """One tensor in the file's dtype."""
        return self._read(name, lambda file, theirs: file.get_tensor(theirs))

    def read_part(self, name: str, rows: tuple[int, int], columns: tuple[int, int] | None = None) -> np.ndarray:
        """Rows, and columns, from the first of a pair up to the second, of one tensor; nothing else is read."""
        bounds = (slice(*rows),) if columns is None else (slice(*rows), slice(*columns))
        part = self._read(name, lambda file, theirs: file.get_slice(theirs)[bounds])
        self.bytes_read += part.nbytes
        return part

    def _read(self, name: str, read: Callable[[Any, str], np.ndarray]) -> np.ndarray:
        file, path, theirs = self._where[name]
        try:
            return read(file, theirs)
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise ValueError(f"cannot read tensor {theirs} of {path}: {error}") from error


def _listing(folder: Path) -> list[tuple[Path, set[str] | None]]:
    """The files, with the tensors wanted from each; None: all."""
    single, index = folder / "model.safetensors", folder / INDEX
    if single.is_file():
        return [(single, None)]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"cannot read {index}: it has no weight_map")
    shards: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        shards.setdefault(Path(str(shard)).name, set()).add(tensor)
    return [(folder / shard, tensors) for shard, tensors in sorted(shards.items())]


def _open(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="np")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot read {path}: {error}; the file is damaged or was not fully downloaded") from error
