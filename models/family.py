# pyright: strict
"""What a model family must supply: the record that everything else reads.

A record is plain Python, so that configs, counts and the simulator need no array library; its decoder is named by an
import path. docs/architecture.md says how to add a family.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.config import ModelConfig
from models.places import Tensors

Fields = dict[str, Any]
"""The object in a config.json, or the keyword arguments of a ModelConfig."""


def _accept(config: ModelConfig) -> None:
    """Every config that passes the checks of all families is one of this family's."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One of the names that Hugging Face has for models of a family, and what its config.json means.

    `read` gives the fields of ModelConfig for a config.json, with transformers' defaults, all but those that every
    architecture spells alike: the default of `vocab_size` and of the ids that begin and end a text (`token_ids`).
    """

    model_type: str
    read: Callable[[Fields], Fields]
    vocab_size: int
    token_ids: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True, kw_only=True)
class GGUFNames:
    """How llama.cpp spells a family.

    `architectures`: its name -> Hugging Face's; `windowed`: the same for a file that has a sliding window. `tensors`:
    its name of a tensor, without suffix and layer, -> Hugging Face's. `interleaved`: its architectures whose q and k
    rows are stored pair by pair.
    """

    architectures: dict[str, str]
    tensors: dict[str, str]
    windowed: dict[str, str] = field(default_factory=dict[str, str])
    interleaved: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models that run through one decoder.

    `module` makes the decoder of (config, options), or is its import path, "package.module:Class". `architectures` are
    by Hugging Face's name. `tensors` lists the checkpoint's tensors; from their places come loading, splitting over
    devices, and the counts that the simulator needs. `check` raises ValueError for a config that the decoder cannot
    run. `learned_positions`: a sequence cannot be longer than the position table. `presets` are published shapes by
    name, each as its config.json says it.
    """

    name: str
    module: str | Callable[[ModelConfig, Any], Any]
    architectures: Mapping[str, Architecture]
    tensors: Callable[[ModelConfig], Tensors]
    check: Callable[[ModelConfig], None] = _accept
    learned_positions: bool = False
    gguf: GGUFNames | None = None
    presets: Mapping[str, Fields] = field(default_factory=dict[str, Fields])
